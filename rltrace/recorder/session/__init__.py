"""One process being recorded, from its first op to its end."""
