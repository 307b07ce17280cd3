"""A trainer and a generator that should compute the same: matched token by token, down to the first op that differs."""
