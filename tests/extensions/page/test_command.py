"""``rltrace report`` as a command: what is written where, what is refused, and how it ends."""

from pathlib import Path

import pytest
from pages import parse
from programs import Do, recorded, training

from rltrace.commands.main import main


@pytest.fixture(autouse=True)
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    recorded(Path("a.zarr"), training())
    recorded(Path("b.zarr"), [Do("aten.randn.default", (), "w1", 1, noise="x"), *training()[1:]])
    return tmp_path


def there() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


def verdict(file: str) -> str:
    return parse(Path(file).read_text(encoding="utf-8")).one(id="verdict").text


def test_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    """A page that was written is a success, whatever it says; one line has its verdict and size."""
    assert main(["report", "a.zarr", "b.zarr", "-o", "report.html"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rltrace: report.html: DIVERGED, ") and err.count("\n") == 1
    assert verdict("report.html") == "DIVERGED"
    assert there() == ["a.zarr", "b.zarr", "report.html"]


@pytest.mark.parametrize("arguments", [["-o", "r.md"], ["-o", "r.MARKDOWN"], ["-o", "r.txt", "--format", "markdown"]])
def test_markdown_by_name_or_format(arguments: list[str]) -> None:
    """The form follows the name; ``--format`` beats it."""
    assert main(["report", "a.zarr", "b.zarr", *arguments, "--quiet"]) == 0
    assert Path(arguments[1]).read_text().startswith("### rltrace: DIVERGED at op 0")


def test_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    """``-`` prints, Markdown unless a page is asked for, and nothing else."""
    assert main(["report", "a.zarr", "b.zarr", "-o", "-"]) == 0
    markdown, err = capsys.readouterr()
    assert markdown.startswith("### rltrace: DIVERGED") and markdown.endswith("</sub>\n") and err == ""
    assert main(["report", "a.zarr", "b.zarr", "-o", "-", "--format", "html"]) == 0
    assert capsys.readouterr().out.startswith("<!DOCTYPE html>\n")


def test_nothing_is_replaced_unless_forced(capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is there stays, unless --force says otherwise."""
    Path("report.html").write_text("mine")
    assert main(["report", "a.zarr", "b.zarr", "-o", "report.html"]) == 2
    assert "report.html exists already; choose another name, or replace it with --force" in capsys.readouterr().err
    assert Path("report.html").read_text() == "mine"
    assert main(["report", "a.zarr", "b.zarr", "-o", "report.html", "--force"]) == 0
    assert verdict("report.html") == "DIVERGED"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["a.zarr", "b.zarr", "-o", "report"],
            "the format of report is unknown: call it .html or .md, or give --format",
        ),
        (["a.zarr", "b.zarr", "-o", "b.zarr", "--format", "html"], "b.zarr is a folder"),
        (["a.zarr", "b.zarr", "-o", "no/r.html"], "there is no folder no"),
        (["a.zarr", "nothing.zarr", "-o", "r.html"], "nothing.zarr is no trace"),
        (["a.zarr", "a.zarr", "-o", "r.html"], "are the same trace"),
        (["a.zarr", "b.zarr"], "Missing option"),
    ],
)
def test_trouble_ends_with_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be done is said in a line, and nothing is left behind."""
    assert main(["report", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert there() == ["a.zarr", "b.zarr"]


def test_a_write_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A disk that is full half-way leaves what was there, and no piece of a report."""
    Path("report.html").write_text("mine")

    def full(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    assert main(["report", "a.zarr", "b.zarr", "-o", "report.html", "--force"]) == 2
    assert "report.html cannot be written: No space left on device" in capsys.readouterr().err
    assert Path("report.html").read_text() == "mine"
    assert there() == ["a.zarr", "b.zarr", "report.html"]


@pytest.mark.parametrize("form", ["html", "md"])
def test_what_is_left_out(form: str, traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Folders are hidden, and shown when asked for."""
    names = [str(traces / "a.zarr"), str(traces / "b.zarr")]
    assert main(["report", *names, "-o", f"hidden.{form}"]) == 0
    assert main(["report", *names, "-o", f"shown.{form}", "--with-host"]) == 0
    assert str(traces) not in Path(f"hidden.{form}").read_text()
    assert str(traces) in Path(f"shown.{form}").read_text()
