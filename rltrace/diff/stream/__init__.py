"""One stream of A compared with its stream of B: bisection, walk, end."""
