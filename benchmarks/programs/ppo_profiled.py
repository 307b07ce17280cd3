"""PPO on CartPole recorded in this process, with or without the profiler. ``ppo_profiled.py STEPS ROWS``.

ROWS: of a cycle; 0: no profiler. It looks at the CPU alone, in place of a device, so what CUPTI costs is not in it.
Writes to ``$BENCH_REPORT``: processor time of the thread and of the process, memory at each tenth, rows and launches'
records.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from reporting import peak_mib, write_report
from stable_baselines3 import PPO

import rltrace
from rltrace.extensions.kernels.profiler import cycles, kineto
from rltrace.trace.read.reader import open_trace


def resident_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))


steps, rows = int(sys.argv[1]), int(sys.argv[2])
kineto.devices = lambda: ("cpu",)
kineto._module = lambda kind: SimpleNamespace(synchronize=lambda: None)
cycles.CYCLE_ROWS = rows
memory: list[float] = []


def note(locals_: dict[str, object], _: object) -> bool:
    if (done := locals_["self"].num_timesteps) // (steps // 10) > len(memory):
        memory.append(round(resident_mib(), 1))
    return bool(done) or True


with tempfile.TemporaryDirectory() as folder:
    trace = Path(folder, "a.zarr")
    with rltrace.record(trace, kernels=(0, None) if rows else None):
        agent = PPO("MlpPolicy", "CartPole-v1", n_steps=512, seed=1, device="cpu")
        thread, process = time.thread_time(), time.process_time()
        agent.learn(steps, callback=note)
        thread, process = time.thread_time() - thread, time.process_time() - process
    told = open_trace(trace).processes[0]
    records = [record for record in told.journal.records if record["type"] == "launches"]
    write_report(
        thread=thread,
        process=process,
        memory=memory,
        peak_mib=peak_mib(),
        rows=told.after_op,
        known=told.launches.rows,
        unknown=[list(entry) for entry in told.launches.unknown],
        cycles=len(records),
        bytes=sum(len(json.dumps(record)) for record in records),
    )
