"""The fixture of pytest that fails where an op does not repeat itself. Imports nothing heavy."""

from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")


@pytest.fixture
def repeat_ops(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., object]:
    """``repeat_ops(f)``: what ``f`` returns; fail where an op that it runs gives something else when called again.

    ``repeat_ops(f, times=20)`` calls each op 20 times more.
    """

    def call(f: Callable[[], T], times: int = 8) -> T:
        __tracebackhide__ = True
        import rltrace
        from rltrace.extensions.sanitizer.report import found_in
        from rltrace.trace.read.reader import open_trace

        trace = tmp_path_factory.mktemp("repeated") / "run.zarr"
        with rltrace.record(trace, repeat=times):
            result = f()
        found = found_in(open_trace(trace).processes[0])
        if found is None or not found.calls:
            pytest.fail("no op was called again: the function runs none, or none that can be")
        if found.unequal:
            _, summary, sentences = found.described()
            pytest.fail("\n".join([summary, *sentences]), pytrace=False)
        return result

    return call
