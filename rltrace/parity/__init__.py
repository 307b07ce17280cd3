"""Two programs that claim to compute the same: their rows matched, module by module, and the gap. No torch."""
