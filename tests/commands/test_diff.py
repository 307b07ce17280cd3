"""``rltrace diff`` as a command: exit statuses, streams, and what it says about bad input."""

import json
from pathlib import Path

import pytest
from programs import Do, recorded, training

from rltrace.commands.main import main
from rltrace.trace.read.reader import open_trace


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


LOG = Do("aten.mean.default", ("e",), "log", 50)


def traces(*programs: list[Do]) -> list[str]:
    names = [f"{letter}.zarr" for letter in "abc"[: len(programs)]]
    for name, program in zip(names, programs, strict=True):
        recorded(Path(name), program)
    return names


def logged() -> list[Do]:
    return [item for do in training() for item in ([do, LOG] if do.name == "aten.sub.Tensor" else [do])]


def test_identical_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    """The report on standard output, nothing on standard error."""
    assert main(["diff", *traces(training(), training())]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("IDENTICAL\n") and out.endswith("\n") and err == ""


def test_same_values_end_with_0_unless_strict(capsys: pytest.CaptureFixture[str]) -> None:
    """Added log lines are no difference, except to --strict, and have one verdict."""
    names = traces(training(), logged())
    for strict in ([], ["--strict"]):
        assert main(["diff", *names, *strict]) == len(strict)
        assert capsys.readouterr().out.startswith("SAME VALUES")


def test_diverged_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    """A difference is 1, and the JSON report says where."""
    other = [Do("aten.randn.default", (), "w1", 1, noise="x"), *training()[1:]]
    assert main(["diff", *traces(training(), other), "--format", "json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"], report["first_value"]["a_index"]) == ("diverged", 0)


def test_an_annotation_follows_the_report(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two traces and of more; --brief stays one object."""
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    other = [Do("aten.randn.default", (), "w1", 1, noise="x"), *training()[1:]]
    names = traces(training(), other, training())
    source = open_trace("a.zarr").processes[0].words.stack(1)[0].source
    Path("train.py").write_text(source)
    for given in (names[:2], names):
        assert main(["diff", *given, "--format", "github"]) == 1
        *report, annotation = capsys.readouterr().out.splitlines()
        assert report[0].startswith("DIVERGED")
        assert annotation.startswith("::error file=train.py,line=1,title=rltrace%3A diverged%2C cause ")
    assert main(["diff", *names, "--format", "github", "--brief"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "diverged"


def test_undecided_ends_with_3() -> None:
    """Equal so far, and one side was killed."""
    recorded(Path("a.zarr"), training(2), state="killed")
    recorded(Path("b.zarr"), training(4))
    assert main(["diff", "a.zarr", "b.zarr"]) == 3


def test_colour_only_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    """Not on a pipe, unless --color always."""
    names = traces(training(), training())
    main(["diff", *names])
    assert "\x1b" not in capsys.readouterr().out
    main(["diff", *names, "--color", "always"])
    assert "\x1b" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.zarr", "nothing.zarr"], "nothing.zarr is no trace"),
        (["a.zarr", "folder"], "folder is no trace"),
        (["a.zarr", "./a.zarr"], "the same trace"),
        (["a.zarr"], "Missing argument"),
        (["a.zarr", "a.zarr", "--format", "yaml"], "yaml"),
    ],
)
def test_what_cannot_be_compared_ends_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One clear line on standard error and nothing on standard output."""
    traces(training())
    Path("folder").mkdir()
    assert main(["diff", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and "Traceback" not in err


def test_a_damaged_journal(capsys: pytest.CaptureFixture[str]) -> None:
    """A trace of which nothing can be read any more ends with 2, one with a part left is judged by that part."""
    names = traces(training(), training())
    process = open_trace("b.zarr").processes[0]
    journal = next(Path("b.zarr", process.base).glob("journal/log"))
    journal.write_bytes(journal.read_bytes()[:-40])
    assert main(["diff", *names]) == 3
    capsys.readouterr()
    for file in (Path("b.zarr/journal/log"), Path("b.zarr/zarr.json")):
        file.write_bytes(b"\0" * 100)
    assert main(["diff", *names]) == 2
    assert "b.zarr" in capsys.readouterr().err
