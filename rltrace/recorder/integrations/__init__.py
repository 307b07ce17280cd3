"""Patches of libraries of an RL program: environments, vectors of them, spaces, checkpoints."""
