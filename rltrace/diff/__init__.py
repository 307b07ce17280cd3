"""Comparing traces: where two recordings of a program first differ, and what kind of difference it is. No torch."""

from rltrace.diff.base.model import Comparison
from rltrace.diff.compare import CompareOptions, compare

__all__ = ["CompareOptions", "Comparison", "compare"]
