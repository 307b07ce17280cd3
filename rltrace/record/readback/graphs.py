"""Graphs of a device that the program captures and replays: what they write, no op is seen to write.

Owns what stands in for the methods of ``torch.cuda.CUDAGraph`` from the first digest on a device on. A capture shuts
the gate. It computes nothing: what its ops are said to write is written at each replay, so after the capture and after
each replay nobody is known to have written it. Of a graph whose capture was not followed, anything may be.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from rltrace.record.readback.gate import Gate

Unseen = Callable[[Iterable[int] | None], None]
"""Told of the addresses of storages that were written by no op; None: of any."""


Fail = Callable[[Exception], None]


class Graphs:
    """Those of one process."""

    def __init__(self, gate: Gate, unseen: Unseen, fail: Fail, graph: type = torch.cuda.CUDAGraph) -> None:
        """``graph``: the class that captures."""
        self._gate = gate
        self._told = unseen
        self._fail = fail
        self._graph = graph
        self._written: weakref.WeakKeyDictionary[Any, set[int]] = weakref.WeakKeyDictionary()
        """By graph that was captured from beginning to end: what it writes."""
        self._capturing: dict[int, set[int]] = {}
        """The same of those that are being captured, by ``id``."""
        self._undo: list[Callable[[], None]] = []

    def watch(self) -> None:
        if self._undo:
            return
        for name, around in (("capture_begin", self._begin), ("capture_end", self._end), ("replay", self._replay)):
            original = getattr(self._graph, name, None)
            if original is not None:
                self._put(name, original, around)

    def ignore(self) -> None:
        while self._undo:
            self._undo.pop()()

    def wrote(self, address: int) -> None:
        """An op that is being captured writes the storage there, whenever its graph is replayed."""
        for written in list(self._capturing.values()):  # of several at a time it may be either's
            written.add(address)

    def _put(self, name: str, original: Any, around: Callable[..., Any]) -> None:
        @functools.wraps(original)
        def method(graph: Any, *args: Any, **kwargs: Any) -> Any:
            return around(functools.partial(original, graph, *args, **kwargs), graph)

        own, holder = name in vars(self._graph), self._graph
        setattr(holder, name, method)
        self._undo.append(lambda: setattr(holder, name, original) if own else delattr(holder, name))

    def _begin(self, call: Callable[[], Any], graph: Any) -> Any:
        self._gate.shut()
        self._capturing[id(graph)] = set()
        try:
            return call()
        except BaseException:
            self._finish(graph)
            raise

    def _end(self, call: Callable[[], Any], graph: Any) -> Any:
        try:
            return call()
        finally:
            written = self._finish(graph)
            if written is not None:
                self._written[graph] = written
            self._unseen(written)

    def _unseen(self, addresses: set[int] | None) -> None:
        try:
            self._told(addresses)
        except Exception as error:  # never in place of what the program did
            self._fail(error)

    def _finish(self, graph: Any) -> set[int] | None:
        written = self._capturing.pop(id(graph), None)
        if written is not None:  # it began while this was watched
            self._gate.open()
        return written

    def _replay(self, call: Callable[[], Any], graph: Any) -> Any:
        try:
            return call()
        finally:
            self._unseen(self._written.get(graph))
