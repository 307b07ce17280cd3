"""Suggested commands: each is one that its verb takes, and a shell reads it as it was meant."""

import ast
import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest
from suggested import command_of, parse

from rltrace.command_lines import (
    UNKNOWN,
    UNKNOWN_VARIABLES,
    NextCommand,
    difference,
    file_name,
    file_names,
    in_folder,
    line,
    parse_line,
    record,
    record_both,
    record_whole,
    variables_of,
)
from rltrace.commands.main import VERBS
from rltrace.testing.builder import TraceBuilder
from rltrace.trace.read.reader import Trace, open_trace

PACKAGE = Path(__file__).parents[1] / "rltrace"

WORDS = re.compile(rf"rltrace ({'|'.join(VERBS)})\b([^.;:`\n]*)")
"""A verb, and what follows it in the same breath."""


def recorded(path: Path, **facts: str) -> Trace:
    trace = TraceBuilder(path)
    for name, value in facts.items():
        trace.fact(name, value)
    trace.op("aten.mm.default")
    return open_trace(trace.finish())


def test_a_line_that_its_verb_refuses_is_noticed() -> None:
    """Options that do not exist and arguments that are missing."""
    for words in (("diff", "a.zarr", "b.zarr", "--no-such-option"), ("confirm", "--until"), ("ops",)):
        with pytest.raises(click.UsageError):
            line(*words)


@pytest.mark.parametrize("verb", VERBS)
def test_examples_of_the_help(verb: str) -> None:
    """What the help shows parses."""
    for example in re.findall(r"^ +rltrace (.*?)(?: \| .*)?$", command_of(verb).help or "", re.MULTILINE):
        parse(("rltrace", *shlex.split(example)))


def test_options_that_texts_name() -> None:
    """A text that names a verb and options of it names none that the verb lacks."""
    named = 0
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text()
        if "rltrace " not in source:
            continue
        texts = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
        for verb, rest in WORDS.findall("\n".join(text for text in texts if isinstance(text, str))):
            known = {option for parameter in command_of(verb).params for option in parameter.opts}
            options = set(re.findall(r"(?<!\S)--[a-z][a-z-]+", rest.partition(" -- ")[0]))
            assert options <= known, f"{path}: rltrace {verb}{rest}"
            named += len(options)
    assert named > 20


def test_a_shell_reads_folder_variables_and_words(tmp_path: Path) -> None:
    """Whatever is in them: spaces, quotes, dollars; ``~`` at the beginning of a folder is the home."""
    folder = tmp_path / "it's $HOME"
    folder.mkdir()
    shown = in_folder(str(folder), {"B": "two words", "A": "$x"}, "printenv A B")
    shell = subprocess.run(["sh", "-c", f"{shown}; pwd"], capture_output=True, text=True, check=True)
    assert shell.stdout.splitlines() == ["$x", "two words", str(Path.cwd())]
    assert in_folder("~/my runs", {}, "true") == "(cd ~/'my runs' && true)"
    assert in_folder("", {}, "true") == "true"
    assert line("info", "my a.zarr") == "rltrace info 'my a.zarr'"


def test_recordings_of_both_programs(tmp_path: Path) -> None:
    """Each under the variables that the other ran without, to files that have other names, and then compared."""
    a = recorded(tmp_path / "a.zarr", **{"env.OMP_NUM_THREADS": "1", "env.MKL_CBWR": "AVX2,STRICT"})
    b = recorded(tmp_path / "b.zarr", **{"env.OMP_NUM_THREADS": "1", "env.NOTE": "two words"})
    record_a, record_b, compare = record_both(a, b, 3, 4, "window", "--verify-inputs")
    assert "MKL_CBWR=AVX2,STRICT rltrace record --steps 3:4 --until 3 --verify-inputs -o " in record_a
    assert "NOTE='two words' rltrace record --steps 4:5 --until 4 --verify-inputs -o " in record_b
    assert compare == "rltrace diff a-window.zarr b-window.zarr"


def test_a_program_of_another_folder_is_recorded_to_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There it runs; its trace comes to where the shell is and stays, so that the next line finds it."""
    (there := tmp_path / "its folder").mkdir()
    (here := tmp_path / "my $HOME").mkdir()
    monkeypatch.setenv("HOME", str(there))
    monkeypatch.chdir(here)
    texts = record_whole(recorded(tmp_path / "a.zarr"), recorded(tmp_path / "b.zarr"), "checked", "--check-links")
    script = "\n".join(["""rltrace() { printf '%s\\n' "$PWD" "$@"; }""", *texts])
    shell = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    words = ("record", "--check-links", "-o", f"{here}/a-checked.zarr", "--", "python", "train.py")
    others = (word.replace("a-checked", "b-checked") for word in words)
    compare = ("diff", "a-checked.zarr", "b-checked.zarr")
    assert shell.stdout.splitlines() == [str(there), *words, str(there), *others, str(here), *compare]
    assert parse_line(texts[0]) == NextCommand(("rltrace", *words), str(there))


def test_variables_of_the_program_itself(tmp_path: Path) -> None:
    """Each run has its own, those that both have included, as no shell has them; of a masked one that is said."""
    a = recorded(tmp_path / "a.zarr", **{"env.NORM": "1", "env.OMP_NUM_THREADS": "1"})
    b = recorded(tmp_path / "b.zarr", **{"env.NORM": "1", "env.SCALE": "0.9", "env.DATA": "***"})
    record_a, record_b, _ = record_both(a, b, 3, 4, "window")
    assert record_a.startswith("NORM=1 OMP_NUM_THREADS=1 rltrace record ") or " && NORM=1 OMP" in record_a
    assert "NORM=1 SCALE=0.9 rltrace record --steps 4:5" in record_b
    assert record_b.endswith("  # and DATA, which the trace does not hold")
    assert parse_line(record_b).variables == {"NORM": "1", "SCALE": "0.9"}


def test_variables_of_one_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded again by itself, it gets those that this shell does not give it, or gives another value."""
    trace = recorded(tmp_path / "a.zarr", **{"env.OMP_NUM_THREADS": "1", "env.MKL_CBWR": "AVX2"})
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MKL_CBWR", "AVX512")
    assert parse_line(record(trace, "b.zarr")).variables == {"MKL_CBWR": "AVX2"}


def test_variables_of_ranks_behind_a_launcher(tmp_path: Path) -> None:
    """Those that the ranks' sources name and all have alike are the command's; not what the launcher gave each."""
    builder = TraceBuilder(tmp_path / "a.zarr", process="launcher:torchrun")
    builder.fact("env.OMP_NUM_THREADS", "1")
    for rank in range(2):
        process = builder.process(f"rank{rank}/main")
        for name, value in (("SEED", "7"), ("PART", str(rank)), ("WORLD_SIZE", "2")):
            process.fact(f"env.{name}", value)
        process.stream().op("aten.mm.default")
    trace = open_trace(builder.finish())
    assert variables_of(trace) == {"OMP_NUM_THREADS": "1", "SEED": "7"}


def test_a_run_of_which_no_variable_is_known(tmp_path: Path) -> None:
    """Where neither command, variables nor sources differ, B may have had others."""
    same = [recorded(tmp_path / f"{name}.zarr", **{"source.train.py": "0"}) for name in "ab"]
    edited = recorded(tmp_path / "c.zarr", **{"source.train.py": "1"})
    assert not record_both(*same, 3, 3, "window")[0].endswith(UNKNOWN_VARIABLES)
    assert record_both(*same, 3, 3, "window")[1].endswith(UNKNOWN_VARIABLES)
    assert not record_both(same[0], edited, 3, 3, "window")[1].endswith(UNKNOWN_VARIABLES)


def test_names_of_recordings(tmp_path: Path) -> None:
    """After the trace; after its folder too, where both traces have one name."""
    for folder in "xy":
        (tmp_path / folder).mkdir()
    one, other = (recorded(tmp_path / name) for name in ("x/run.zarr", "y/run.zarr"))
    assert file_name(one, "rows") == "run-rows.zarr"
    assert file_names(one, other, "rows") == ("x-run-rows.zarr", "y-run-rows.zarr")
    assert file_names(one, one, "rows") == ("a-x-run-rows.zarr", "b-x-run-rows.zarr")


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("python t.py", "/usr/bin/python3.12 t.py", ""),
        ("python t.py", "python t.py --seed 2", "B adds --seed 2"),
        ("torchrun --master-port 1 t.py", "torchrun --master_port=2 t.py --seed 2", "B adds --seed 2"),
        ("python t.py --fast --seed 2", "python t.py --fast", "B leaves out --seed 2"),
        ("python t.py --lr 0.1 -v", "python t.py --lr 0.2 -v", "--lr 0.1 in A, --lr 0.2 in B"),
        ("python t.py --lr=0.1", "python t.py --lr=0.2 --shift -1", "--lr=0.1 in A, --lr=0.2 --shift -1 in B"),
        ("python -m a x y", "python -m b x", "-m a in A, -m b in B; B leaves out y"),
        ("python t.py 'a b'", "python t.py 'a c'", "'a b' in A, 'a c' in B"),
    ],
)
def test_how_two_commands_differ(a: str, b: str, expected: str) -> None:
    """An option is named with its value; another path of the same interpreter is none."""
    words_a, words_b = tuple(shlex.split(a)), tuple(shlex.split(b))
    assert difference(words_a, words_b) == expected
    assert difference(words_a, UNKNOWN) == difference(UNKNOWN, words_b) == ""
