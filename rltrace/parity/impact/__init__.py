"""What differences amount to: log-probabilities, routing, the part of each module."""
