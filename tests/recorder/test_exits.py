"""Ends of a process that run no exit hook: what is recorded is committed first."""

import os
import threading
from pathlib import Path

from rltrace.recorder.processes.exits import CommitServer, request_commit


def test_a_request_to_a_worker_that_starts_waits_until_it_records(tmp_path: Path) -> None:
    """The parent connects while the worker only listens, and goes on after the worker's first commit."""
    server = CommitServer(str(tmp_path))
    server.listen()
    order: list[str] = []
    parent = threading.Thread(
        target=lambda: (request_commit(str(tmp_path), str(os.getpid())), order.append("terminated"))
    )
    parent.start()
    server.serve(lambda: order.append("committed"))
    parent.join()
    server.end()
    assert order == ["committed", "terminated"]


def test_a_request_to_a_worker_that_does_not_listen_returns(tmp_path: Path) -> None:
    """Nothing to wait for: no server, or one that has ended."""
    request_commit(str(tmp_path), str(os.getpid()))
    server = CommitServer(str(tmp_path))
    server.listen()
    server.end()
    request_commit(str(tmp_path), str(os.getpid()))
