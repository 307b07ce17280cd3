"""Digests of tensors on the host and on devices, and of RNG states."""
