"""URLs of traces: which are read, and what of them is shown."""

from pathlib import Path

import pytest

from rltrace.errors import UsageError
from rltrace.trace.format.location import TraceURL, folder_beside, local_folder, parse_location


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a.zarr", "a.zarr"),
        ("/x/a.zarr", "/x/a.zarr"),
        ("s3:/x", "s3:/x"),
        ("file:///x/a%20b.zarr", "/x/a b.zarr"),
        ("FILE://localhost/x", "/x"),
    ],
)
def test_paths(text: str, path: str) -> None:
    """A text without a scheme is a path, and so is file://."""
    assert parse_location(text) == Path(path)


@pytest.mark.parametrize("text", ["s3://b/x/a.zarr", "gs://b/a.zarr", "az://c/a.zarr", "https://h:8/x/a.zarr"])
def test_urls(text: str) -> None:
    """A URL is shown as it was given, and has a name, a parent and children as a path has."""
    url = parse_location(text)
    assert isinstance(url, TraceURL)
    assert (str(url), url.name, str(url.parent)) == (text, "a.zarr", text.removesuffix("/a.zarr"))
    assert str(url.child("nodes/0")) == f"{text}/nodes/0"
    assert parse_location(f"{text}/").resolve() == url.resolve()


@pytest.mark.parametrize(
    "text", ["https://user:hidden@h/a.zarr", "https://hidden@h/a.zarr", "s3://k:hidden@h/a.zarr?x=hidden#hidden"]
)
def test_no_secret_is_shown(text: str) -> None:
    """User, password, query and fragment are in no text that a URL makes of itself."""
    url = parse_location(text)
    for shown in (str(url), repr(url), f"{url}", url.name, str(url.parent), str(url.resolve())):
        assert "hidden" not in shown
    assert "***@h/a.zarr" in str(url)


@pytest.mark.parametrize("text", ["ftp://h/hidden:hidden@x", "s3://", "https:///a.zarr", "file://other/a.zarr"])
def test_other_urls(text: str) -> None:
    """A URL that cannot be a trace's is refused by what is wrong with it."""
    with pytest.raises(UsageError, match=r"unknown kind|names no bucket|names no host|names the host other"):
        parse_location(text)


def test_files_about_a_trace() -> None:
    """What is written beside a trace is written into the current folder where that is at a URL."""
    assert folder_beside(Path("x/a.zarr")) == Path("x")
    assert folder_beside(TraceURL("s3://b/a.zarr")) == Path()
    with pytest.raises(UsageError, match=r"replay needs the trace in a folder .* copy s3://b/a.zarr into one"):
        local_folder(TraceURL("s3://b/a.zarr"), "replay")
