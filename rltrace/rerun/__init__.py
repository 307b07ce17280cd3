"""What was recorded, run again: one op, the ops of a step, or the program with recorded values or memory injected."""
