"""Comparing traces: where two recordings of a program first differ, and what kind of difference it is. No torch."""

from __future__ import annotations

from rltrace.diff.compare import compare
from rltrace.diff.model import Comparison

__all__ = ["Comparison", "compare"]
