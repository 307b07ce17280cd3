"""Where a trace is: a folder of this machine, or a URL.

Owns which URLs are traces, and what of one may be shown. Opens nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from rltrace.errors import UsageError
from rltrace.masking import MASK

BUCKETS: Final = ("s3", "gs", "az")
SERVERS: Final = ("https", "http")


@dataclass(frozen=True)
class TraceURL:
    """Where a trace is that is in no folder of this machine. Its text (in JSON, too) has no user, password or query."""

    address: str = field(repr=False)
    """All of it."""

    def __str__(self) -> str:
        parts = urlsplit(self.address)
        user, _, host = parts.netloc.rpartition("@")
        shown = f"{parts.scheme}://{MASK + '@' if user else ''}{host}{parts.path}"
        return shown + (f"?{MASK}" if parts.query or parts.fragment else "")

    @property
    def name(self) -> str:
        """The last part of the path."""
        return unquote(self._path.rpartition("/")[2])

    @property
    def parent(self) -> TraceURL:
        """The same one folder up."""
        return TraceURL(self._parts._replace(path=self._path.rpartition("/")[0]).geturl())

    def child(self, names: str) -> TraceURL:
        """The same, so many folders down."""
        return TraceURL(self._parts._replace(path=f"{self._path}/{names}").geturl())

    @property
    def scheme(self) -> str:
        return self._parts.scheme

    @property
    def credentials(self) -> str:
        """``user:password``; "": none are given."""
        return unquote(self._parts.netloc.rpartition("@")[0])

    @property
    def bare(self) -> str:
        """The address without them."""
        return self._parts._replace(netloc=self._parts.netloc.rpartition("@")[2]).geturl()

    def resolve(self) -> TraceURL:
        """Itself, without a slash at the end."""
        return TraceURL(self._parts._replace(path=self._path).geturl())

    @property
    def _parts(self) -> SplitResult:
        return urlsplit(self.address)

    @property
    def _path(self) -> str:
        return self._parts.path.rstrip("/")


Location = Path | TraceURL
"""Where a trace is."""


def local_folder(location: Location, what: str) -> Path:
    """The folder of a trace, for what cannot do with a URL. Raises UsageError."""
    if isinstance(location, TraceURL):
        raise UsageError(f"{what} needs the trace in a folder of this machine; copy {location} into one")
    return location


def folder_beside(location: Location) -> Path:
    """The folder for files about a trace: the one that it is in; for a URL the current one."""
    return Path() if isinstance(location, TraceURL) else location.parent


def parse_location(text: str) -> Location:
    """A path, or the URL of a trace; ``file://`` is a path. Raises UsageError for a URL of another kind."""
    scheme, separator, rest = text.partition("://")
    if not separator or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        return Path(text)
    known = scheme.lower()
    shown = TraceURL(text)
    if known == "file":
        host, _, path = rest.partition("/")
        if host not in ("", "localhost"):
            raise UsageError(f"{shown} names the host {host}; file:// is followed by a path of this machine")
        return Path("/" + unquote(path))
    if known not in (*BUCKETS, *SERVERS):
        kinds = ", ".join(f"{kind}://" for kind in (*BUCKETS, *SERVERS, "file"))
        raise UsageError(f"{shown} is a URL of an unknown kind; traces are read from a folder, {kinds}")
    if not urlsplit(text).hostname:
        raise UsageError(f"{shown} names no {'bucket' if known in BUCKETS else 'host'}")
    return TraceURL(known + separator + rest)
