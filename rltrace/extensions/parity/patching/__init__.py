"""Activation patching: another program's activation rows injected while a program runs."""
