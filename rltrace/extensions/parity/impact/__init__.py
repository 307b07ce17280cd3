"""What differences amount to: log-probabilities and routing."""
