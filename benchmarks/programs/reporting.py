"""The memory of a measured program."""

from pathlib import Path


def peak_mib() -> float:
    """Largest resident memory so far. Not ``getrusage``: that carries the launching process's peak over exec."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))
