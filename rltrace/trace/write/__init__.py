"""What writes a trace inside the recorded program, without zarr."""
