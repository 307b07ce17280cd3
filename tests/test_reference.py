"""The documentation: its generated part is what the code says, and each of its links leads somewhere."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def test_generated_pages() -> None:
    """The command line and the tables of the trace format read as scripts/reference.py writes them.

    In a fresh interpreter: a command remembers its help option as it was asked for first.
    """
    checked = subprocess.run(
        [sys.executable, ROOT / "scripts" / "reference.py", "--check"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_record_types() -> None:
    """Each type of journal record that is written is described."""
    from rltrace.trace.format.schema import LAUNCH_RECORD_TYPES, RECORD_TYPES

    code = "".join(path.read_text() for path in (ROOT / "rltrace").rglob("*.py"))
    written = set(re.findall(r'\{\s*"type": "(\w+)"', code))
    assert written - set(RECORD_TYPES) - set(LAUNCH_RECORD_TYPES) == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    """Every relative link leads to a file, and its anchor to a heading of that file."""
    assert [link for link in _links(page) if not _leads_somewhere(page, link)] == []


def _links(page: Path) -> Iterator[str]:
    for match in _LINK.finditer(_CODE.sub("", page.read_text())):
        if "://" not in match[1]:
            yield match[1]


def _leads_somewhere(page: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    return target.exists() and (not anchor or anchor in _anchors(target))


def _anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings: lower case, no punctuation, hyphens for spaces."""
    headings = _HEADING.findall(_FENCE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
