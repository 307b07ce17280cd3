"""Requests to a run that is asleep: which steps a process records because of one, and that one is whole or absent."""

import json
from pathlib import Path

import pytest

from rltrace.trace.format.arming import (
    VERSION,
    Answer,
    ArmRequest,
    EndRequest,
    SleepingProcess,
    end_path,
    read_end_request,
    read_request,
    request_path,
    sleeping_process,
    sleeping_processes,
    write_end_request,
    write_request,
)
from rltrace.trace.format.process_start import STARTS, checked, write_start


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / STARTS).mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("step", "given", "from_now"), [(3, (5, 7), (5, 7)), (5, (5, 7), (5, 7)), (6, (6, 7), (6, 8)), (7, None, (7, 9))]
)
def test_window(step: int, given: tuple[int, int] | None, from_now: tuple[int, int]) -> None:
    """A process records those of given steps that are left, and as many steps from now as are requested."""
    assert ArmRequest(5, 7).window_at(step) == given
    assert ArmRequest(5, 7, relative=True).window_at(step) == from_now
    assert ArmRequest(5, None).window_at(step) == (max(step, 5), None)


def test_requests_are_numbered(trace: Path) -> None:
    """Each is read as it was written, none replaces another, and nothing else is left in the folder."""
    requests = ArmRequest(1, 2), ArmRequest(3, None, relative=True, values=("op=mm",)), ArmRequest(0, 1, disarm=True)
    assert [write_request(trace, request) for request in requests] == [1, 2, 3]
    assert tuple(read_request(trace, number) for number in (1, 2, 3)) == requests
    assert sorted(path.name for path in (trace / STARTS).iterdir()) == ["1.request", "2.request", "3.request"]


def test_a_damaged_request(trace: Path) -> None:
    """It is no request, wherever it is cut."""
    write_request(trace, ArmRequest(1, 2))
    path = Path(request_path(trace, 1))
    whole = path.read_bytes()
    for size in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert read_request(trace, 1) is None


def test_a_request_that_is_a_link(trace: Path) -> None:
    """A link is not followed."""
    number = write_request(trace, ArmRequest(1, 2))
    Path(request_path(trace, number)).rename(trace / "elsewhere")
    Path(request_path(trace, number)).symlink_to(trace / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        read_request(trace, number)


def test_processes_asleep(trace: Path) -> None:
    """A process is found as it described itself, as long as it runs and records; a damaged file is no process."""
    token, state = write_start(trace, {}), SleepingProcess(7, 3, Answer.ARMED, 9, None, is_awake=True)
    state.write(trace, token)
    (trace / STARTS / "x.asleep").write_bytes(b"short")
    assert list(sleeping_processes(trace)) == [state]
    state._replace(is_over=True).write(trace, token)
    assert list(sleeping_processes(trace)) == []
    assert sleeping_process(trace, "x") is None


def test_the_end_is_requested(trace: Path) -> None:
    """It is read as it was written, a later one replaces it, and one that is damaged or of another version is none."""
    for request in (EndRequest(6, "loss differs"), EndRequest(3, "so does the gradient")):
        write_end_request(trace, request)
        assert read_end_request(trace) == request
    path = Path(end_path(trace))
    assert list((trace / STARTS).iterdir()) == [path]
    whole = path.read_bytes()
    fields = {"version": VERSION, **request._asdict()}
    others = [{**fields, "version": VERSION + 1}, {**fields, "more": 1}, {"version": VERSION, "step": 3}]
    for data in (whole[:-1], b"", *(checked(json.dumps(other).encode()) for other in others)):
        path.write_bytes(data)
        assert read_end_request(trace) is None
