"""Traces that these tests share."""

from trace_fixtures import batches, sample, trace, written  # noqa: F401  fixtures
