"""Activation rows, captured: what ``record --rows`` adds to the captures of a process.

No module of this package is imported where no option requests rows, but by adapters and by what injects them.
"""
