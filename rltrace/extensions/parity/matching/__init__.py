"""Which activation row of one program is which of the other: forward passes, keys, layouts, pairs."""
