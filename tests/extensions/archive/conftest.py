"""Traces that these tests share."""

from __future__ import annotations

from trace_fixtures import batches, sample, trace, written  # noqa: F401  fixtures
