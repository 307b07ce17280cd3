"""A report's page, taken apart with the standard library's parser, and traces whose numbers are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from rltrace.testing import TraceBuilder

VOID = {"br", "hr", "input", "meta"}
LOSS = ("train.py", 40, "train", "losses.append(loss.item())")


@dataclass
class Node:
    """One element of a page."""

    tag: str
    attributes: dict[str, str]
    children: list[Node] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    """Its text and that of what is in it, in order."""

    def all(self, tag: str = "", **wanted: str) -> list[Node]:
        """Every element within it of that tag with these attributes (``class_``: one of its classes)."""
        found = [node for child in self.children for node in ([child] if _fits(child, tag, wanted) else [])]
        return [*found, *(node for child in self.children for node in child.all(tag, **wanted))]

    def one(self, tag: str = "", **wanted: str) -> Node:
        (found,) = self.all(tag, **wanted)
        return found

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def _fits(node: Node, tag: str, wanted: dict[str, str]) -> bool:
    for name, value in wanted.items():
        found = node.attributes.get(name.rstrip("_").replace("_", "-"))
        if found is None or (value not in found.split() if name == "class_" else value != found):
            return False
    return tag in ("", node.tag)


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Node("", {})]
        self.trouble: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(set(names)) < len(names):
            self.trouble.append(f"<{tag}> has an attribute twice")
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if self.open[-1].tag != tag:
            self.trouble.append(f"</{tag}> in <{self.open[-1].tag}>")
        else:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        for node in self.open:
            node.words.append(data)


def parse(page: str) -> Node:
    """The page as a tree; every element must end where it has to."""
    parser = _Parser()
    parser.feed(page)
    parser.close()
    assert parser.trouble == []
    assert [node.tag for node in parser.open] == [""]
    return parser.open[0]


def losses(path: Path, numbers: Sequence[float], noise_from: int | None = None, module: str = "net") -> Path:
    """A run that reads a loss out in each step; from step ``noise_from`` on other values."""
    builder = TraceBuilder(path)
    for step, number in enumerate(numbers):
        noise = "other" if noise_from is not None and step >= noise_from else ""
        loss = builder.op(
            "aten.mean.default",
            ("train.py", 39, "train", "loss = error.mean()"),
            inputs=[("outside", f"batch{step}")],
            outputs=[f"loss{step}{noise}"],
            module=module,
            kernel={"library": "ATen", "isa": "AVX2"},
        )
        builder.op("aten._local_scalar_dense.default", LOSS, inputs=[loss], value=float(number))
        builder.end_step(parameters=f"p{step}{noise}", gradients=f"g{step}{noise}", generators="r")
    return builder.finish()
