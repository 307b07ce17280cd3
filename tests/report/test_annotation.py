"""A verdict as an annotation: a line of the checkout or none, and text that cannot end the command it is in."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltrace.diff.base.model import Pair
from rltrace.report.brief import Brief, BriefFinding, annotation
from rltrace.trace.read.names import Site

SOURCE = "loss = f(x)"


def found(*stack: Site, explanation: str = "Why.") -> Brief:
    at = ("aten.mm.default", "rank0/main:3", 0, "other", None, None, Pair(None, None))
    return Brief("diff", "diverged", 1, "", BriefFinding("kernel", *at, explanation, stack))


def frame(path: str, line: int = 2, source: str = SOURCE) -> Site:
    return Site(Path(path).name, line, "update", source, path)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Two programs of one name, a library beside them, and a file outside."""
    checkout = tmp_path / "checkout"
    for name in ("checkout/train.py", "checkout/agents/train.py", "checkout/venv/site-packages/train.py", "other.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"import torch\n    {SOURCE}\n")
    return checkout


@pytest.mark.parametrize(
    ("stack", "place"),
    [
        ([frame("CHECKOUT/agents/train.py")], "file=agents/train.py,line=2,"),
        ([frame("CHECKOUT/train.py")], "file=train.py,line=2,"),
        ([frame("/tmp/traces/folders/1/train.py")], "file=agents/train.py,line=2,"),
        ([frame("~/_work/repository/agents/train.py")], "file=agents/train.py,line=2,"),
        ([frame("CHECKOUT/venv/site-packages/train.py")], ""),
        ([frame("CHECKOUT/../other.py")], ""),
        ([frame("CHECKOUT/train.py", line=1)], ""),
        ([frame("CHECKOUT/train.py", line=0)], ""),
        ([frame("CHECKOUT/train.py", line=9)], ""),
        ([frame("CHECKOUT/train.py", line=3, source="")], ""),
        ([frame("<string>"), frame("")], ""),
        ([frame("CHECKOUT/venv/site-packages/train.py"), frame("CHECKOUT/train.py")], "file=train.py,line=2,"),
        ([], ""),
    ],
)
def test_the_line(checkout: Path, stack: list[Site], place: str) -> None:
    """The innermost call site in the checkout, wherever its run worked; none where the text of the line is another."""
    sites = [frame(site.path.replace("CHECKOUT", str(checkout)), site.line, site.source) for site in stack]
    text = annotation(found(*sites), checkout / "agents", checkout)
    assert text == f"::error {place}title=rltrace%3A diverged%2C cause kernel::Why."


def test_escapes(tmp_path: Path) -> None:
    """As GitHub's toolkit has them: a message may have colons and commas, a property may not."""
    name = "a,b:c%.py"
    (tmp_path / name).write_text(SOURCE)
    text = annotation(found(frame(name, 1), explanation="100 %:\r\n::error::a, b"), tmp_path, tmp_path)
    assert text == (
        "::error file=a%2Cb%3Ac%25.py,line=1,title=rltrace%3A diverged%2C cause kernel::100 %25:%0D%0A::error::a, b"
    )


@pytest.mark.parametrize(("status", "level"), [(0, "notice"), (1, "error"), (3, "warning")])
def test_the_level_is_that_of_the_exit_status(tmp_path: Path, status: int, level: str) -> None:
    """Without a finding the verdict and its reason are all there is."""
    text = annotation(Brief("diff", "unknown", status, "b.zarr is unfinished"), tmp_path)
    assert text == f"::{level} title=rltrace%3A unknown::b.zarr is unfinished"
