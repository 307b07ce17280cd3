"""One recorded op called again on its recorded inputs, under its recorded settings."""
