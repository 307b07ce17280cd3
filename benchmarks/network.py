"""An object store on this machine, and a slow way to it: processes for benchmarks of traces at URLs.

python benchmarks/network.py store FOLDER
python benchmarks/network.py way PORT [--delay 0.05] [--rate 1000000] [--log FILE]

Prints the port that it listens on. The store is that of the tests, which speaks S3; the way delays each answer, limits
the bytes a second of all connections together, and logs each request: its begin, its end and the bytes of its answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import IO

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))


@dataclass(frozen=True)
class Requests:
    """What a command asked for."""

    count: int
    serial: int
    """The longest chain of requests of which each began after the one before had ended."""
    bytes: int


def requests(log: Path, first: int = 0) -> Requests:
    """The requests of a log, from its byte ``first`` on."""
    lines = log.read_bytes()[first:].splitlines()
    found = sorted((end, begin, size) for begin, end, size in map(json.loads, lines))
    serial, last = 0, 0.0
    for end, begin, _ in found:
        if begin >= last:
            serial, last = serial + 1, end
    return Requests(len(found), serial, sum(size for _, _, size in found))


@contextmanager
def started(*words: object) -> Iterator[int]:
    """This program in a process of its own; yields its port."""
    command = [sys.executable, __file__, *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def variables(port: int) -> dict[str, str]:
    """Environment variables with which ``s3://bucket`` is the store behind this port."""
    from trace_servers import S3_VARIABLES

    return {**S3_VARIABLES, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}


class Way:
    def __init__(self, port: int, delay: float, rate: float, log: IO[str]) -> None:
        self._port, self._delay, self._rate, self._log = port, delay, rate, log
        self._free = 0.0
        """When the bytes that were taken have been passed on."""

    async def _pass_on(self, data: bytes, to: asyncio.StreamWriter) -> None:
        if self._rate:
            self._free = max(self._free, time.monotonic()) + len(data) / self._rate
            await asyncio.sleep(self._free - time.monotonic())
        to.write(data)
        await to.drain()

    async def connect(self, own: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        there, there_in = await asyncio.open_connection("127.0.0.1", self._port)
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        open_request: list[float] = []  # begin, end and bytes of the answer so far

        def close() -> None:
            if len(open_request) == 3:
                self._log.write(json.dumps(open_request) + "\n")
                self._log.flush()
            open_request.clear()

        async def up() -> None:
            while data := await own.read(1 << 16):
                if len(open_request) == 3:
                    close()
                if not open_request:
                    open_request.append(time.time())
                await self._pass_on(data, there_in)
            there_in.close()

        async def down() -> None:
            while data := await there.read(1 << 18):
                await late.put((time.time() + self._delay, data))
            await late.put((0, b""))

        async def send() -> None:
            while (found := await late.get())[1]:
                await asyncio.sleep(max(found[0] - time.time(), 0))
                await self._pass_on(found[1], answer)
                open_request[1:] = [time.time(), (open_request[2] if len(open_request) == 3 else 0) + len(found[1])]
            close()
            answer.close()

        await asyncio.gather(up(), down(), send(), return_exceptions=True)

    async def run(self) -> None:
        server = await asyncio.start_server(self.connect, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("store").add_argument("folder", type=Path)
    way = kinds.add_parser("way")
    way.add_argument("port", type=int)
    way.add_argument("--delay", type=float, default=0.0, help="seconds that each answer comes later")
    way.add_argument("--rate", type=float, default=0.0, help="bytes a second; 0: no limit")
    way.add_argument("--log", type=Path, default=Path(os.devnull))
    options = parser.parse_args()
    if options.kind == "store":
        from trace_servers import served

        (options.folder / "bucket").mkdir(parents=True, exist_ok=True)
        with served(options.folder) as server:
            print(server.port, flush=True)
            Event().wait()
    with options.log.open("w") as log:
        asyncio.run(Way(options.port, options.delay, options.rate, log).run())


if __name__ == "__main__":
    main()
