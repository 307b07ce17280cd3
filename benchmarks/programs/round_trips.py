"""A child process that sends back what it receives: ``round_trips.py COUNT``.

Writes to ``$BENCH_REPORT`` how long a message takes, in µs of wall-clock and of both processes' processor time: one of
a few numbers, as of an environment's step, and an array of 1 MiB.
"""

import multiprocessing
import sys
import time
from multiprocessing.connection import Connection

import numpy as np
import torch
from reporting import write_report

SENT = {"small": (17, 1.0, False, [0.1, 0.2, 0.3, 0.4]), "1 MiB": np.zeros(1 << 18, np.float32)}


def echo(connection: Connection) -> None:
    connection.send(connection.recv())
    began = time.process_time()
    while (received := connection.recv()) is not None:
        connection.send(received)
    connection.send(time.process_time() - began)


def main(count: int) -> None:
    weight = torch.ones(1, requires_grad=True)
    weight.sum().backward()
    torch.optim.SGD([weight], 0.1).step()
    report = {}
    for name, message in SENT.items():
        trips = count if name == "small" else count // 20
        own, other = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=echo, args=(other,))
        child.start()
        own.send(message)
        own.recv()
        begin, began = time.perf_counter(), time.process_time()
        for _ in range(trips):
            own.send(message)
            own.recv()
        seconds, busy = time.perf_counter() - begin, time.process_time() - began
        own.send(None)
        busy += own.recv()
        child.join()
        report[name] = 1e6 * seconds / (2 * trips)
        report[f"{name}, processor"] = 1e6 * busy / (2 * trips)
    write_report(**report)


if __name__ == "__main__":
    main(int(sys.argv[1]))
