"""Tools over whole traces: verification and slices."""
