"""The HTML page of a comparison: one file without scripts that loads nothing."""
