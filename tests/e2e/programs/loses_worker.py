"""Trains a little; in its second run it first kills, once, the worker of Ray that runs it."""

import os
import signal
import sys
import time
from pathlib import Path

import torch

run, lost = os.environ["RLTRACE_RUN"], Path(sys.argv[1])


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


result = torch.ones(3) * (3.0 if run == "2" else 2.0)
if run == "2" and not lost.exists():
    lost.write_text(str(os.getpid()))
    os.kill(parent(os.getppid()), signal.SIGKILL)
    time.sleep(600)  # until it is ended with its worker
print(run, Path("data.txt").read_text(), os.environ.get("OMP_NUM_THREADS"), os.environ.get("PROBE"))
