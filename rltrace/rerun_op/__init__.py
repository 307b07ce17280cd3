"""Recorded ops called again under their recorded settings: one on its inputs, or those of a step in their order."""
