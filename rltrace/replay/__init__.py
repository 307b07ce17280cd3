"""A run of the program with recorded values injected."""
