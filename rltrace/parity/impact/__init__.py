"""What differences amount to: log-probabilities, routing, the contribution of each module."""
