"""Patches of libraries around an RL program: environments, vectors of them, spaces, checkpoints."""
