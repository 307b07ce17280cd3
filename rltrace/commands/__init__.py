"""One short file per verb; ``console`` alone knows exit statuses and standard error."""
