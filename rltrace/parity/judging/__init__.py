"""What a difference between rows means: the first module that parts, its first op on each side, and because of what."""
