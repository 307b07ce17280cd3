"""Verified reading of a trace: rows, values, activations; unreadable rows are holes."""
