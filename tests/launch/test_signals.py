"""Signals reach the program as if the launcher were not there, once each; its death by one is the launcher's too."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

RLTRACE = Path(sys.executable).parent / "rltrace"

COUNTING = """
import signal, sys
seen = []
asked = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT}
signal.pthread_sigmask(signal.SIG_BLOCK, asked)
print("ready", flush=True)
while True:
    number = signal.sigwait(asked)
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGUSR2:
        break
"""
"""Takes signals one at a time and names each; ends at SIGUSR2."""


def line(code: str, *options: str) -> list[str]:
    return [str(RLTRACE), "record", "--quiet", *options, "-o", "t.zarr", "--", sys.executable, "-c", code]


@contextmanager
def started(code: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The launcher in a session of its own, when the program has said that it is ready; none outlives the test."""
    child = subprocess.Popen(
        line(code), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    with child:
        try:
            assert child.stdout.readline() == "ready\n"
            yield child
            child.communicate()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def test_signal_to_the_launcher_alone_is_passed_on(tmp_path: Path) -> None:
    """A signal sent to the launcher's pid reaches the program."""
    with started(COUNTING, tmp_path) as child:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT, signal.SIGQUIT):
            os.kill(child.pid, number)
            assert child.stdout.readline() == f"{number.name}\n"
        os.kill(child.pid, signal.SIGUSR2)
        assert child.stdout.readline() == "SIGUSR2\n"


def test_signal_to_the_group_arrives_once(tmp_path: Path) -> None:
    """What the whole group got is not passed on a second time."""
    with started(COUNTING, tmp_path) as child:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.killpg(child.pid, number)
            assert child.stdout.readline() == f"{number.name}\n"
            os.kill(child.pid, signal.SIGHUP)  # the launcher takes this up after the first, and so does the program
            assert child.stdout.readline() == "SIGHUP\n"
        os.kill(child.pid, signal.SIGUSR2)
        assert child.stdout.readline() == "SIGUSR2\n"


STARTING = """
import os, signal, subprocess, sys
from rltrace.launch.signals import Relay
def signal_at(moment):
    if moment == sys.argv[1]:
        os.killpg(0, signal.SIGTERM) if sys.argv[2] == "group" else os.kill(os.getpid(), signal.SIGTERM)
with Relay() as relay:
    signal_at("before")
    child = subprocess.Popen([sys.executable, "-c", sys.argv[3]], stdout=-1, text=True, preexec_fn=relay.in_child)
    assert child.stdout.readline() == "ready\\n"
    signal_at("between")
    if sys.argv[1:3] == ["between", "group"]:
        assert child.stdout.readline() == "SIGTERM\\n"
        print("SIGTERM")
    relay.to(child)
    signal_at("after")
    child.send_signal(signal.SIGWINCH)
    print(child.stdout.read(), end="")
"""
"""The launcher's part, signalled at a moment of its choice; the program is COUNTING with another signal to end it."""


@pytest.mark.parametrize("whom", ["group", "alone"])
@pytest.mark.parametrize("moment", ["before", "between", "after"])
def test_signal_while_the_program_is_started(moment: str, whom: str) -> None:
    """Whether the program is there already, and whether the launcher knows it yet: the signal arrives once."""
    counting = COUNTING.replace("SIGUSR2", "SIGWINCH")  # the highest number: taken last
    line = [sys.executable, "-c", STARTING, moment, whom, counting]
    result = subprocess.run(line, capture_output=True, text=True, start_new_session=True)
    assert (result.stdout, result.stderr) == ("SIGTERM\nSIGWINCH\n", "")


MEANWHILE = """
import os, signal, subprocess, sys
from rltrace.launch import signals
signals.WITNESS_SECONDS = 3600.0
select, others = signals.select.select, [signal.SIGHUP]
class Interrupted:
    def select(*asked):
        if others:
            os.kill(os.getpid(), others.pop())
        return select(*asked)
signals.select = Interrupted
with signals.Relay() as relay:
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=-1, text=True, preexec_fn=relay.in_child)
    assert child.stdout.readline() == "ready\\n"
    relay.to(child)
    os.kill(os.getpid(), signal.SIGTERM)
    print(child.stdout.readline(), child.stdout.readline(), sep="", end="")
    child.kill()
"""
"""The launcher's part, signalled again while the witness is asked about the first; it waits as long as it takes."""


def test_signal_while_another_is_passed_on(tmp_path: Path) -> None:
    """Both arrive, whichever the program takes first, and none waits for an answer that the other has taken."""
    line = [sys.executable, "-c", MEANWHILE, COUNTING]
    result = subprocess.run(line, capture_output=True, text=True, start_new_session=True, timeout=1200)
    assert (sorted(result.stdout.split()), result.stderr) == (["SIGHUP", "SIGTERM"], "")


def at_terminal(folder: Path, words: list[str]) -> tuple[int, int, bytes]:
    """The launcher's pid, its terminal and what this shows by the time at which the program is ready."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execv(RLTRACE, words)
    shown = b""
    while b"ready\r\n" not in shown:
        shown += os.read(terminal, 1024)
    return pid, terminal, shown


def test_interrupt_at_a_terminal(tmp_path: Path) -> None:
    """Ctrl-C on a terminal: the program gets its one KeyboardInterrupt, cleans up, and the launcher ends like it."""
    code = (
        "import select, sys\ntry:\n    print('ready', flush=True)\n"
        "    while not select.select([sys.stdin], [], [], 0.1)[0]:\n        pass\n"  # a read may begin after the signal
        "except KeyboardInterrupt:\n    print('cleaned up', flush=True)\n    raise\n"
    )
    pid, terminal, shown = at_terminal(tmp_path, line(code))
    os.write(terminal, b"\x03")
    try:
        while piece := os.read(terminal, 1024):
            shown += piece
    except OSError:  # the terminal is gone with its last process
        pass
    _, status = os.waitpid(pid, 0)
    assert shown.count(b"cleaned up") == 1
    assert shown.count(b"KeyboardInterrupt") == 1
    assert os.WTERMSIG(status) == signal.SIGINT


def test_a_terminal_that_hangs_up(tmp_path: Path) -> None:
    """The program gets its one SIGHUP and ends as it likes; the launcher reports to no one, and ends so too."""
    code = (
        "import os, signal, sys\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP, signal.SIGUSR1])\n"
        "print('ready', flush=True)\nsignal.sigwait([signal.SIGHUP])\n"
        "os.kill(os.getppid(), signal.SIGUSR1)\nsignal.sigwait([signal.SIGUSR1])\n"  # taken up after it
        "os._exit(6 if signal.SIGHUP in signal.sigpending() else 5)\n"
    )
    pid, terminal, _ = at_terminal(tmp_path, [word for word in line(code) if word != "--quiet"])
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGSEGV])
def test_death_by_a_signal_is_shown_as_such(tmp_path: Path, number: signal.Signals) -> None:
    """A shell sees the same as without the launcher, and there is one core file at most."""
    code = f"import os, signal\nsignal.signal({int(number)}, signal.SIG_DFL) if {int(number)} != 9 else None\n"
    result = subprocess.run(line(code + f"os.kill(os.getpid(), {int(number)})"), cwd=tmp_path, capture_output=True)
    assert result.returncode == -number


def test_ignored_signals_stay_ignored(tmp_path: Path) -> None:
    """Under nohup the program ignores SIGHUP; it must under the launcher too."""
    code = "import signal; print(signal.getsignal(signal.SIGHUP).name)"
    shell = subprocess.run(
        ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *line(code)], cwd=tmp_path, capture_output=True, text=True
    )
    assert shell.stdout == "SIG_IGN\n"


def test_a_status_is_known_though_children_are_ignored(tmp_path: Path) -> None:
    """Where SIGCHLD is ignored the system forgets how children ended; the program's status still comes out."""
    code = "import signal, sys; print(signal.getsignal(signal.SIGCHLD).name); sys.exit(3)"
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    shell = subprocess.run([sys.executable, "-c", ignoring, *line(code)], cwd=tmp_path, capture_output=True, text=True)
    assert (shell.returncode, shell.stdout) == (3, "SIG_IGN\n")


def test_default_handlers_are_the_programs(tmp_path: Path) -> None:
    """No handler or mask of the launcher's is handed down."""
    code = (
        "import signal; print([signal.getsignal(n).name for n in (1, 3, 10, 12, 15)], "
        "signal.getsignal(2) is signal.default_int_handler, signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    )
    result = subprocess.run(line(code), cwd=tmp_path, capture_output=True, text=True)
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == plain.stdout != ""


def test_launcher_that_is_killed_leaves_the_program_alone(tmp_path: Path) -> None:
    """The program goes on when its launcher is gone, and nothing of the launcher's stays behind."""
    code = "import sys\nprint('ready', flush=True)\nprint('got', sys.stdin.readline(), flush=True)\n"
    child = subprocess.Popen(
        line(code), cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with child:
        assert child.stdout.readline() == "ready\n"
        child.kill()
        child.wait()
        child.stdin.write("on\n")
        child.stdin.flush()
        assert child.stdout.read() == "got on\n\n"  # to the end: no other process holds the pipe


def test_inherited_files_are_the_programs(tmp_path: Path) -> None:
    """An open file that the shell handed over, as in ``<(…)``, is the program's too."""
    read, write = os.pipe()
    with os.fdopen(read), os.fdopen(write, "w") as handed:
        handed.write("through the pipe")
        handed.flush()
        result = subprocess.run(
            line(f"import os; print(os.read({read}, 100))"),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            pass_fds=[read],
        )
    assert result.stdout == "b'through the pipe'\n"
