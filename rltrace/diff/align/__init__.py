"""Which row of A matches which row of B, and what is extra, moved, renamed or edited. Decides no cause."""
