"""The HTML page of a comparison: one file that loads nothing and runs nothing."""
