"""Questions to traces that reports, verbs and the interface share: ops, pairs, values, names, positions. No torch."""
