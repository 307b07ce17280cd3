"""Traces taken apart and put together again with other content, every checksum made to fit.

Owns what a lying writer could produce: records and chunks that no checksum gives away. For tests of the reader; knows
the format from its definition, so that nothing here asks the reader what is right.
"""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from xxhash import xxh3_64_hexdigest

from rltrace.trace.format import chunk_codec
from rltrace.trace.format.arrays import (
    ACTIVATION_ARRAYS,
    CELLS,
    ROWS,
    SERIES,
    STEPS,
    TABLES,
    VALUE_BYTES,
    VALUE_INDEX,
    ArraySpec,
)
from rltrace.trace.format.journal import MAGIC, chain, parse_journal

Record = dict[str, Any]
Files = dict[str, bytes]
"""Content of every file of a trace, by its path within the trace."""

ARRAYS = (ROWS, CELLS, TABLES, STEPS, SERIES, VALUE_BYTES, VALUE_INDEX, *ACTIVATION_ARRAYS)
SPECS = {spec.name.rpartition("/")[2]: spec for spec in ARRAYS}

NUMBERS = (-1, 0, 1, 2, 7, 255, 4096, 65_536, 65_537, 1 << 20, 1 << 31, 1 << 32, 1 << 48, 1 << 63, 1 << 64, 10**30)
ODD: tuple[Any, ...] = (
    *NUMBERS,
    *(-number for number in NUMBERS[1:]),
    *(None, True, False, 0.5, -0.0, 1e300, float("nan"), float("inf")),
    *("", "0", "x", "\0", "\ud800", "é" * 40, "../../etc/passwd", "f" * 16, "0" * 16, "-" + "f" * 15, "0x" + "1" * 14),
    *([], {}, [[]], [[], []], [0, 0, 0, 0], {"a": 1}, [None], [{"names": 3}], {"names": [1]}, {"names": 5}),
)
"""Values that something may trip over."""


def load(path: Path) -> Files:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def store(files: Files, path: Path) -> Path:
    """Write a whole trace, in place of whatever stood there."""
    shutil.rmtree(path, ignore_errors=True)
    for key, data in files.items():
        file = path / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return path


def spoil(file: Path, text: bytes, past: int = 0) -> None:
    """Flip a bit so many bytes past the last place where a text is in a file."""
    data = bytearray(file.read_bytes())
    data[data.rindex(text) + past] ^= 1
    file.write_bytes(data)


def records(files: Files, base: str) -> list[Record]:
    return parse_journal(files[f"{base}journal/log"]).records


def journal(payloads: list[bytes]) -> bytes:
    """A journal of these payloads, correctly framed and chained."""
    digest, data = 0, b""
    for payload in payloads:
        digest = chain(digest, payload)
        data += MAGIC + len(payload).to_bytes(4, "little") + payload + digest.to_bytes(8, "little")
    return data


def encoded(content: list[Record]) -> list[bytes]:
    return [json.dumps(record, separators=(",", ":")).encode() for record in content]


def rewrite(files: Files, base: str, change: Callable[[Record], Record | None]) -> Files:
    """The trace with each record of one journal changed (None: dropped), the chain made to fit."""
    changed = [change(record) for record in records(files, base)]
    return with_journal(files, base, encoded([record for record in changed if record is not None]))


def with_journal(files: Files, base: str, payloads: list[bytes]) -> Files:
    """The trace with another journal, and what the launch's journal says of all journals made to fit."""
    files = {**files, f"{base}journal/log": journal(payloads)}
    if not base:
        return files
    heads = []
    for folder in bases(files):
        found = parse_journal(files[f"{folder}journal/log"])
        heads.append([int(folder.split("/")[1]), found.size, f"{found.digest:016x}"])
    fitting = [{**record, "heads": heads} if record["type"] == "journals" else record for record in records(files, "")]
    return {**files, "journal/log": journal(encoded(fitting))}


def bases(files: Files) -> list[str]:
    """Folders of the processes, each with a slash at its end."""
    return sorted(key.removesuffix("journal/log") for key in files if key.endswith("/journal/log"))


def replace_chunk(files: Files, base: str, key: str, stored: np.ndarray) -> Files:
    """The trace with another chunk at ``key`` below the process ``base``, and a journal that names it so."""
    return replace_encoded(files, base, key, chunk_codec.encode(_spec(key), np.ascontiguousarray(stored)))


def replace_encoded(files: Files, base: str, key: str, data: bytes) -> Files:
    def renamed(record: Record) -> Record:
        changed = {}
        for name in {"files", "bytes_files"} & set(record):
            own = [key, len(data), xxh3_64_hexdigest(data)]
            changed[name] = [own if file[0] == key else file for file in record[name]]
        for name in {"calls", "tensors", "digests"} & set(record):  # arrays of a record "activations"
            changed[name] = renamed(record[name]) if isinstance(record[name], dict) else record[name]
        return {**record, **changed}

    return {
        **rewrite(files, base, lambda record: renamed(record) if "files" in record or "calls" in record else record),
        f"{base}{key}": data,
    }


def _spec(key: str) -> ArraySpec:
    return SPECS[key.split("/")[-2]]


def change_first(files: Files, base: str, kind: str, change: Record) -> Files:
    """The trace with the first record of a kind changed in one journal."""
    content = records(files, base)
    first = next(record for record in content if record["type"] == kind)
    return with_journal(
        files, base, encoded([{**record, **change} if record is first else record for record in content])
    )


def kill_before(path: Path, base: str, kind: str) -> None:
    """Cut one journal before its second record of a kind, and the launch's after its first: both were killed."""
    log, launch = path / f"{base}journal/log", path / "journal/log"
    found = parse_journal(log.read_bytes())
    second = [number for number, record in enumerate(found.records) if record["type"] == kind][1]
    log.write_bytes(log.read_bytes()[: sorted(found.ends)[second - 1]])
    launch.write_bytes(launch.read_bytes()[: min(parse_journal(launch.read_bytes()).ends)])


# --- at random --------------------------------------------------------------------------------------------------------


def tamper(files: Files, random_: random.Random) -> Files:
    """One false statement at a random place, written so that every checksum confirms it."""
    base = random_.choice(["", *bases(files)])
    chunks = [key for key in files if key.startswith(base) and key.split("/")[-1].startswith("c.")]
    if base and chunks and random_.random() < 0.5:
        return _tamper_chunk(files, base, random_.choice(chunks).removeprefix(base), random_)
    return with_journal(files, base, _tampered_records(records(files, base), random_))


def _tampered_records(content: list[Record], random_: random.Random) -> list[bytes]:
    content = content or [{"type": "novelty"}]
    at = random_.randrange(len(content))
    how = random_.randrange(8)
    if how == 0:
        other = random_.randrange(len(content))
        content[at], content[other] = content[other], content[at]
    elif how == 1:
        content.insert(random_.randrange(len(content) + 1), content[at])
    elif how == 2:
        del content[at]
    elif how == 3:
        payloads = encoded(content)
        own = payloads[at]
        odd = b"", b"{}", b"[]", b"null", b'{"type":5}', b'{"type":"end"}', b'{"type":' + b"[" * 5000, b"\xff", b"NaN"
        payloads[at] = random_.choice([*odd, own[:-1], own.replace(b",", b',"type":"commit",', 1), own * 2])
        return payloads
    else:
        content[at] = odd_value_somewhere(content[at], random_)
    return encoded(content)


def odd_value_somewhere(value: Any, random_: random.Random) -> Any:
    """A copy of a JSON value in which one part is odd, gone, doubled or new."""
    if isinstance(value, dict) and value and random_.random() < 0.9:
        key = random_.choice(list(value))
        if random_.random() < 0.15:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: odd_value_somewhere(value[key], random_)}
    if isinstance(value, list) and value and random_.random() < 0.9:
        at = random_.randrange(len(value))
        how = random_.random()
        if how < 0.15:
            return value[:at] + value[at + 1 :]
        if how < 0.3:
            return [*value[:at], value[at], *value[at:]]
        return [*value[:at], odd_value_somewhere(value[at], random_), *value[at + 1 :]]
    if isinstance(value, int) and random_.random() < 0.4:
        return value + random_.choice([-1, 1, 2, -2, 100])
    return random_.choice(ODD)


def _tamper_chunk(files: Files, base: str, key: str, random_: random.Random) -> Files:
    spec = _spec(key)
    try:
        stored = chunk_codec.decode(spec, files[base + key]).copy()
    except chunk_codec.CodecError:  # an earlier lie is in it already
        return files
    if random_.random() < 0.1:
        body = chunk_codec.load()[0].compress(bytes(random_.choice([0, 1, 100, 1 << 20])), 1)
        return replace_encoded(files, base, key, body + chunk_codec.load()[1].value(body).to_bytes(4, "little"))
    if random_.random() < 0.1:  # a body that its own checksum confirms and that does not unpack
        body = bytearray(files[base + key][:-4])
        body[random_.randrange(len(body))] ^= 1 << random_.randrange(8)
        return replace_encoded(
            files, base, key, bytes(body) + chunk_codec.load()[1].value(bytes(body)).to_bytes(4, "little")
        )
    if spec is TABLES:
        return replace_chunk(files, base, key, _tampered_table(stored, random_))
    flat = stored.reshape(-1)
    used = np.flatnonzero(flat)
    for _ in range(random_.choice([1, 1, 1, 3, 50])):
        at = int(random_.choice(used)) if len(used) and random_.random() < 0.8 else random_.randrange(len(flat))
        number = random_.choice([*NUMBERS, int(flat[at]) + 1, int(flat[at]) - 1, int(flat[at]) ^ 1, 3 << 12])
        flat[at] = number % (1 << 8 * spec.itemsize)
    return replace_chunk(files, base, key, stored)


def _tampered_table(stored: np.ndarray, random_: random.Random) -> np.ndarray:
    lines = stored.tobytes().rstrip(b"\0").split(b"\n")[:-1] or [b"[]"]
    at = random_.randrange(len(lines))
    how = random_.randrange(6)
    if how == 0:
        lines[at] = random_.choice([b"", b"null", b"[]", b"[1,2,3,4]", b"\xff\xfe", b"[" * 3000, lines[at][:-1]])
    elif how == 1:
        lines.insert(at, random_.choice(lines))
    else:
        lines[at] = json.dumps(odd_value_somewhere(json.loads(lines[at]), random_)).encode()
    data = b"".join(line + b"\n" for line in lines)[: len(stored)]
    return np.frombuffer(data.ljust(len(stored), b"\0"), np.uint8)


def flip_in_chunk(path: Path, array: str = "rows") -> Path:
    """Flip a bit amid the first chunk of the first stream's array; returns the file."""
    folder = path / "processes/0/streams/0" / array
    chunk = min(file for file in folder.rglob("*") if file.is_file() and file.name != "zarr.json")
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1
    chunk.write_bytes(data)
    return chunk
