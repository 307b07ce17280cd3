"""Verdicts on programs of libraries that rltrace has never seen: unchanged runs, and runs under other CPU kernels.

    python benchmarks/verdicts [--out verdicts-out] [PROGRAM …]

Every program of ``programs/`` runs unchanged twice under each setting, recorded, and once under each CPU kernel
setting; the oracle of the tests looks at the same independently. A program's findings go to ``OUT/PROGRAM.json``; the
table is made of all that are there and printed as Markdown. Needs the libraries of ``constraints-verdicts.txt``
(``make verdicts``).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "tests" / "support")]

from arms import FEW, PROGRAMS, SETTINGS, Bench, ProgramFailedError, Setting, survey  # noqa: E402
from measure import machine, table  # noqa: E402

LIBRARIES = {
    "sb3": ("stable-baselines3",),
    "contrib": ("sb3-contrib",),
    "cleanrl": (),
    "tianshou": ("tianshou",),
    "skrl": ("skrl",),
    "torchrl": ("torchrl", "tensordict"),
    "d3rlpy": ("d3rlpy",),
    "trl": ("trl", "transformers"),
    "peft": ("peft", "transformers"),
    "opacus": ("opacus",),
    "lightning": ("lightning",),
}
"""Distributions behind a program, by the start of its name."""

ALSO = {"peft_qlora": ("bitsandbytes",)}
"""And by the whole name."""

KERNEL_SETTINGS = ("ATEN_CPU_CAPABILITY=default", "MKL_CBWR=COMPATIBLE")
"""The two that change most on processors with AVX2; one that changes nothing says so in the table."""


def library(program: Path) -> str:
    """``trl 1.16.0, transformers 5.23.0``."""
    names = LIBRARIES[program.stem.partition("_")[0]] + ALSO.get(program.stem, ())
    return ", ".join(f"{name} {version(name)}" for name in names) or "one file, in the manner of CleanRL"


def programs(wanted: list[str]) -> list[Path]:
    """Those asked for, or all: every file whose name begins with a library's."""
    found = {p.stem: p for p in sorted(PROGRAMS.glob("*.py")) if p.stem.partition("_")[0] in LIBRARIES}
    return [found[name] for name in wanted] if wanted else list(found.values())


def run(program: Path, out: Path, kept: Path, settings: tuple[Setting, ...]) -> None:
    """One program, its findings written down."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            bench = Bench(program, Path(folder), kept)
            found = survey(bench, library(program), KERNEL_SETTINGS, settings)
        except ProgramFailedError as error:
            print(f"{program.stem}: {error}", file=sys.stderr)
            return
    (out / f"{program.stem}.json").write_text(found.as_json())
    verdicts = ", ".join(unchanged.verdict for unchanged in found.unchanged)
    agrees = ", ".join(str(kernels.agrees) for kernels in found.kernels)
    print(f"{program.stem}: {verdicts}; the oracle agrees: {agrees} ({found.seconds:.0f} s)", file=sys.stderr)


def unchanged_table(findings: list[dict[str, Any]]) -> str:
    """One line a program: what came of two unchanged runs under each setting."""
    settings = list(dict.fromkeys(u["setting"] for found in findings for u in found["unchanged"]))
    header = ["program", "library", "ops", *settings]
    header += ["marked rows (differing)", "recorded = unrecorded"]
    rows = []
    for found in findings:
        unchanged = found["unchanged"]
        marked = {f"{u['marked']:,} ({u['marked_differing']:,})" for u in unchanged}
        rows.append(
            [
                f"`{found['program']}`",
                found["library"],
                f"{unchanged[0]['ops']:,}",
                *("; ".join(verdict(u) for u in unchanged if u["setting"] == s) or "not run" for s in settings),
                "; ".join(sorted(marked)),
                "yes" if all(u["same_bits"] for u in unchanged) else "**no**",
            ]
        )
    return table(header, rows)


def verdict(unchanged: dict[str, Any]) -> str:
    """The verdict, with the number of ops that changed places."""
    reordered = f" ({unchanged['reordered']:,} reordered)" if unchanged["reordered"] else ""
    return f"{unchanged['verdict']}{reordered}"


def kernel_table(findings: list[dict[str, Any]]) -> str:
    """One line a program and kernel setting: the first op that differs, as rltrace and as the oracle name it."""
    header = ["program", "setting", "verdict", "first op that differs", "cause", "inputs", "where", "the oracle's"]
    rows = [
        [
            f"`{found['program']}`",
            f"`{kernels['setting']}`",
            kernels["verdict"],
            occurrence(kernels["named"]),
            kernels["cause"],
            kernels["inputs_match"],
            kernels["place"],
            "the same" if kernels["agrees"] else f"**{occurrence(kernels['oracle'])}**",
        ]
        for found in findings
        for kernels in found["kernels"]
    ]
    return table(header, rows)


def occurrence(op: list[Any] | None) -> str:
    """The op, and behind ``#`` how many of its name ran before it."""
    return f"`{op[0]}` #{op[1]}" if op else "none"


def report(findings: list[dict[str, Any]]) -> str:
    """The whole as Markdown."""
    notes = [
        f"- `{found['program']}`, {unchanged['setting']}: {remark}."
        for found in findings
        for unchanged in found["unchanged"]
        for remark in dict.fromkeys(
            [*unchanged["complaints"], *([unchanged["why"]] if unchanged["verdict"] != "identical" else [])]
        )
    ]
    revisions = ", ".join(sorted({found["revision"] for found in findings}))
    parts = [f"{machine()}, revision {revisions}.", unchanged_table(findings), kernel_table(findings), "\n".join(notes)]
    return "\n\n".join(filter(None, parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", help="names of programs; all where none is given")
    parser.add_argument("--out", type=Path, default=Path("verdicts-out"), help="folder of the findings")
    parser.add_argument(
        "--kept",
        type=Path,
        help="folder where what runs without rltrace is kept, not to be run again; OUT/kept if not given",
    )
    parser.add_argument("--jobs", type=int, default=2, help="programs at a time")
    parser.add_argument("--few", action="store_true", help="two unchanged settings instead of four")
    parser.add_argument("--table", action="store_true", help="run nothing, only print the table")
    arguments = parser.parse_args()
    settings = FEW if arguments.few else SETTINGS
    kept = arguments.kept or arguments.out / "kept"
    arguments.out.mkdir(exist_ok=True)
    wanted = [] if arguments.table else programs(arguments.programs)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(lambda program: run(program, arguments.out, kept, settings), wanted))
    findings = [json.loads(path.read_text()) for path in sorted(arguments.out.glob("*.json"))]
    print(report(findings))


if __name__ == "__main__":
    main()
