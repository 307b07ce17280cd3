"""What the judgement of a pair of rows may look at besides the pair."""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.diff.aligning.matching import Matching
from rltrace.diff.model import EnvironmentDifference
from rltrace.diff.view import StreamView


@dataclass(frozen=True)
class Scene:
    """Two streams, and what has been settled about them so far."""

    a: StreamView
    b: StreamView
    matching: Matching
    settings: tuple[EnvironmentDifference, ...]
    """Facts that select kernels and differ."""
