"""A comparison as one page of HTML, or as Markdown, to attach to an issue."""

from typing import Final

from rltrace.extension import Extension, Verb

EXTENSION: Final = Extension(
    {
        "report": Verb(
            "Look", "Write a comparison as a page or Markdown, for an issue.", "rltrace.extensions.page.command"
        )
    },
    page="rltrace.extensions.page.page:page_of",
)
