"""Verified reading of a trace: rows, values, activations; what cannot be read is a hole."""
