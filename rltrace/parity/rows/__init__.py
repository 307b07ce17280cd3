"""Which row of one program is which of the other: forward passes, keys, how tensors lie on them, and the pairing."""
