"""Queries of traces that reports, verbs and the interface share: ops, pairs, values, positions. Imports no torch."""
