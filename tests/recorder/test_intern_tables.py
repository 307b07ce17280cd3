"""Interned tables: ids are consecutive whatever comes between two steps."""

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from children import run_threads

from rltrace.recorder.base import intern_tables as tables_module
from rltrace.recorder.base.intern_tables import Tables
from rltrace.trace.format.rows import TableEntry
from rltrace.trace.format.tables import KeyTables

MOMENTS = 200


def interrupted(moment: int, call: Callable[[], object]) -> bool:
    """``call``, with Ctrl-C before the bytecode of that number in the module; whether it came."""
    left = moment

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != tables_module.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("remember", [False, True])
def test_ctrl_c_leaves_the_tables_whole(remember: bool) -> None:
    """At every bytecode of interning: the writer takes what is there and what comes after; a key has one payload."""
    came = 0
    for moment in range(MOMENTS):
        tables = Tables()
        if remember:
            tables.remember("ops")
        came += interrupted(moment, lambda tables=tables: tables.intern("ops", 7, "aten.mm.default"))
        number = tables.intern("ops", 7, "aten.mm.default")
        other = tables.intern("ops", 8, "aten.add.Tensor")
        assert tables.intern("ops", 7, "aten.mm.default") == number
        entries = tables.take()
        KeyTables().extend(entries)  # raises where ids are not consecutive
        by_id = {entry.id: entry for entry in entries if entry.table == "ops"}
        assert by_id[number] == TableEntry("ops", number, 7, "aten.mm.default")
        assert by_id[other] == TableEntry("ops", other, 8, "aten.add.Tensor")
        assert tables.key_of("ops", number) == 7 and tables.key_of("ops", other) == 8
        if remember:
            assert tables.remembered["ops"] == {number: entry.payload for number, entry in by_id.items()}
    assert 20 < came < MOMENTS  # all moments there are


def test_threads_get_ids_of_their_own() -> None:
    """Eight threads intern at once, switched as often as can be: no id twice, and none left out."""
    tables = Tables()
    start = threading.Barrier(8)
    before = sys.getswitchinterval()

    def intern(first: int) -> None:
        start.wait()
        for key in range(first, first + 400):
            tables.intern("ops", key // 2, key // 2)

    try:
        sys.setswitchinterval(1e-6)
        run_threads(*(threading.Thread(target=intern, args=(200 * k,)) for k in range(8)))
    finally:
        sys.setswitchinterval(before)
    entries = tables.take()
    KeyTables().extend(entries)
    keys = [entry.key for entry in entries if entry.table == "ops"]
    assert sorted(keys) == sorted(set(keys)) == list(range(100 * 7 + 200))
