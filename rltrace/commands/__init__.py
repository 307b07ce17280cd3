"""One file per verb; only ``console`` defines exit statuses and writes to standard error."""
