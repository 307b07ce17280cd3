"""Memory: who wrote the bytes that an op reads, what an op writes, and what the program hands out of torch.

Owns the tracking of storages. Follows tensors without keeping any, and never changes one.
"""
