"""What the differences amount to: log-probabilities, routing, and how much of the gap each module brings."""
