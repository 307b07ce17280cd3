"""``record --against``: a run compared with a trace while it runs."""
