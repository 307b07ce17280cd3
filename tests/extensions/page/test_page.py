"""The page as a document: what is in it, that it is well-formed, closed to the outside, and harmless."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from comparisons import CASES
from golden import pinned
from pages import Node, losses, parse
from programs import Do, recorded, training
from views import both

from rltrace.diff.base.model import Pair
from rltrace.extensions.jax import JAX_ENGINE
from rltrace.extensions.page.data import PageData, gather
from rltrace.extensions.page.page import html_page, policy, style_sheet
from rltrace.report.redaction import Disclosure
from rltrace.testing import TraceBuilder

GOLDEN = Path(__file__).parent / "golden"
HOSTILE = "</title><script>alert(1)</script><img src=x onerror=alert(2)>\"' --> \u202e \x00 &lt;"


Cases = Mapping[str, PageData]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    """What the page of each kind of comparison is made of."""
    found = {}
    for name, build in CASES.items():
        with contextlib.chdir(tmp_path_factory.mktemp(name)):
            build()
            found[name] = gather("a.zarr", "b.zarr")
    return found


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_comparison(cases: Cases, name: str) -> None:
    """Well-formed; the verdict in its heading; references lead to one place in the page, pictures have names."""
    found = cases[name]
    page = parse(html_page(found))
    assert page.one(id="verdict").text == found.comparison.verdict.value.upper().replace("-", " ")
    assert found.comparison.verdict.value in page.one(id="verdict").attributes["class"]
    ids = [node.attributes["id"] for node in page.all() if "id" in node.attributes]
    assert len(set(ids)) == len(ids)
    assert {a.attributes["href"].removeprefix("#") for a in page.all("a")} <= set(ids)
    for node in page.all():
        assert set(node.attributes.get("aria-labelledby", "").split()) <= set(ids)
    for picture in page.all("svg", role="img"):
        assert picture.one("title").text and picture.one("desc").text
    assert [len(page.all(tag)) for tag in ("h1", "main", "nav", "footer", "style")] == [1] * 5


BLOCKS = {"h1", "h2", "h3", "p", "dd", "tr", "li", "summary", "pre", "caption"}


def words(node: Node) -> Iterator[str]:
    """A line for each block of text, in the order of the page."""
    for child in node.children:
        if child.tag in BLOCKS:
            yield f"{child.tag:<8}{child.text}"
        elif child.tag not in ("head", "nav"):
            yield from words(child)


@pytest.mark.parametrize("name", ["kernel", "extra_draw", "unfinished"])
def test_words(cases: Cases, name: str) -> None:
    """What the page says, word for word. ``UPDATE_GOLDEN=1 pytest tests/extensions/page`` writes it anew."""
    found = cases[name]
    runs = Pair(*(run and replace(run, created="2026-01-02T03:04:05+00:00") for run in (found.runs.a, found.runs.b)))
    text = "\n".join(words(parse(html_page(replace(found, runs=runs), version="1.2.3")))) + "\n"
    assert text == pinned(GOLDEN / f"{name}.page.txt", text)


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_loaded_or_run(cases: Cases, name: str) -> None:
    """No script, no link out, no style but the one in the policy; and the policy forbids the rest."""
    text = html_page(cases[name])
    page = parse(text)
    tags = {node.tag for node in page.all()}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "audio", "video", "use"}
    for node in page.all():
        assert not [key for key in node.attributes if key.startswith("on") or key in ("style", "src", "action")]
        assert node.attributes.get("href", "#").startswith("#")
    assert "url(" not in text and "@import" not in text and "http" not in text.replace("http-equiv", "")
    (given,) = page.all("meta", http_equiv="Content-Security-Policy")
    assert given.attributes["content"] == policy()
    assert policy().startswith("default-src 'none'; style-src 'sha256-")
    assert page.one("style").text == " ".join(style_sheet().split())


def hostile(path: Path, noise: str) -> Path:
    """A trace of which every name is an attack."""
    builder = TraceBuilder(path)
    site = (f"{HOSTILE}.py", 3, HOSTILE, HOSTILE)
    stream = builder.stream(f"rank0/main/thread:{HOSTILE}")
    what = {"module": HOSTILE, "kernel": {"library": HOSTILE}, "scalars": [HOSTILE]}
    what["layouts"] = [(HOSTILE, (1,), (1,), HOSTILE)]
    for source in (builder.main.stream(), stream):
        row = source.op(HOSTILE, [site, site], inputs=[("outside", "x")], outputs=[f"y{noise}"], **what)
        source.op("aten._local_scalar_dense.default", [site], inputs=[row], value=float(len(noise)))
    builder.end_step(HOSTILE, parameters=noise)
    builder.fact(f"env.{HOSTILE}", f"{HOSTILE}{noise}")
    return builder.finish()


def test_names_that_are_attacks() -> None:
    """A module, path, source line or thread that is called like a tag is shown, and is nothing but text."""
    text = html_page(gather(hostile(Path("a.zarr"), ""), hostile(Path("b.zarr"), "n")), Disclosure(True, True))
    page = parse(text)
    assert not {"script", "img"} & {node.tag for node in page.all()}
    assert not any("alert" in f"{key}" for node in page.all() for key in node.attributes)
    assert "<script>alert(1)</script>" in page.one("section", id="finding").all("pre")[0].text
    assert text.count("&lt;script&gt;") > 5
    assert not re.search("[\u202e\x00]", text)


def test_the_finding(cases: Cases) -> None:
    """Op, place, cause and evidence; and the commands to run next."""
    page = parse(html_page(cases["kernel"]))
    finding = page.one("section", id="finding")
    for words in ("aten.mm.default", "train.py:20", "critic.0", "ATen AVX2, 4 threads", "ATen AVX512, 4 threads"):
        assert words in finding.text
    assert "before 25 identical ops" in finding.text
    assert "rltrace record --steps 1:2 --until 1 --verify-inputs" in page.one("section", id="next").text
    assert "cpu.capability AVX2 AVX512" in page.one("section", id="system").text


def test_the_ops_around_it(cases: Cases) -> None:
    """Identical ops before it are folded; the finding is marked, what follows is said to receive."""
    page = parse(html_page(cases["kernel"]))
    rows = page.one("section", id="ops").one("tbody").children
    signs = [row.all("td", class_="sign")[0].text if row.all("td", class_="sign") else row.text for row in rows]
    assert signs[0] == "⋯ 23 identical ops ⋯"
    (found,) = [row for row in rows if "is-found" in row.attributes.get("class", "").split()]
    assert found.text.startswith("▶ the finding, ≠ differs 25 25")
    assert "~ receives" in signs


def test_one_sided_ops(cases: Cases) -> None:
    """An op that one side alone ran has no row number on the other."""
    (found,) = parse(html_page(cases["extra_draw"])).one("section", id="ops").all("tr", class_="is-found")
    assert [cell.text for cell in found.all("td", class_="number")] == ["", "17"]


def test_the_timeline_and_the_curves() -> None:
    """How each step ended, and the numbers where they diverge, in full."""
    losses(Path("a.zarr"), [3.0, 2.0, 1.0, 0.5, 0.25])
    losses(Path("b.zarr"), [3.0, 2.0, 1.0, 0.5, 0.25000000000000006], noise_from=2)
    page = parse(html_page(gather("a.zarr", "b.zarr")))
    timeline = page.one("section", id="timeline")
    bars = [bar.attributes["class"] for bar in timeline.one("svg", class_="timeline").all("rect")]
    assert bars == ["is-same"] * 2 + ["is-differs"] * 3
    assert "5 steps: 2 equal, 3 differing." in timeline.text
    curves = page.one("section", id="curves")
    assert "First difference at step 2 (net's mean)" in curves.text
    assert "differs from step 4 (0.25 | 0.25000000000000006)" in curves.text
    last = curves.one("details", id="curve-0").one("tbody").children[-1]
    assert [cell.text for cell in last.children] == ["4", "0.25", "0.25000000000000006", "-5.55e-17"]


def test_a_step_of_jax_is_an_iteration(cases: Cases) -> None:
    """In the title of its section."""
    found = cases["kernel"]
    sides = [replace(side, engine=JAX_ENGINE) for side in (found.comparison.a, found.comparison.b)]
    page = parse(html_page(replace(found, comparison=replace(found.comparison, a=sides[0], b=sides[1]))))
    assert page.one("section", id="timeline").one("h2").text == "Every iteration"


def test_long_runs_make_a_small_page_that_says_so() -> None:
    """A thousand steps are drawn at a few hundred places, and the page says how they were chosen."""
    numbers = [1 / (step + 1) for step in range(1000)]
    losses(Path("a.zarr"), numbers)
    losses(Path("b.zarr"), [*numbers[:750], *(number * 1.5 for number in numbers[750:])], noise_from=750)
    text = html_page(gather("a.zarr", "b.zarr"))
    assert len(text) < 120_000
    page = parse(text)
    curve = page.one("details", id="curve-0")
    assert "about 240 of a side are drawn: of each stretch the first, last, smallest and largest" in curve.text
    assert len(curve.one("svg", class_="curve").one("polyline", class_="side-a").attributes["points"].split()) <= 240
    assert "750 equal, 250 differing" in page.one("section", id="timeline").text


def test_alternating_steps_say_that_places_are_shared() -> None:
    """Where more runs of steps alternate than can be drawn, the page says that the worst of neighbours is drawn."""
    for trace, name in both(Path(), level="step"):
        for step in range(2000):
            parameters = f"p{step}{name if step % 2 else ''}"
            trace.end_step(parameters=parameters, gradients="g", generators="r", recorded=False)
    text = parse(html_page(gather("a.zarr", "b.zarr"))).one("section", id="timeline").text
    assert "2,000 steps: 1,000 equal, 1,000 differing. Neighbouring steps share a place" in text


def crowded(path: Path, noise: str) -> Path:
    """A program that has too much of everything: inputs, frames, processes, facts, numbers, and long names."""
    builder = TraceBuilder(path)
    long = "long_name_" * 50
    deep = [("train.py", line, f"f{line}{long}", f"g({line}, {long})") for line in range(1, 300)]
    for k in range(120):
        builder.fact(f"env.{k}{long}", f"{long}{noise}")
    for k in range(1, 25):
        builder.process(f"rank{k}/main").stream().op(
            f"aten.op{k}.default", deep[:50], inputs=[("outside", f"{k}{noise}")], outputs=[f"x{k}{noise}"]
        )
    tensors = [("outside", f"t{k}{noise if k == 399 else ''}") for k in range(400)]
    builder.op("aten._foreach_add_.List", deep, inputs=tensors, outputs=[f"o{k}{noise}" for k in range(400)])
    for k in range(70):
        builder.op(
            "aten._local_scalar_dense.default", ("train.py", 2000 + k, "log", f"log({k}, {long})"), value=float(k)
        )
    builder.end_step(parameters=noise, gradients=noise, generators="r")
    return builder.finish()


def test_too_much_of_everything() -> None:
    """The page stays small, and each list says what it leaves out."""
    text = html_page(gather(crowded(Path("a.zarr"), ""), crowded(Path("b.zarr"), "n")))
    assert len(text) < 500_000
    page = parse(text)
    assert "… and 46 more curves" in page.one("section", id="curves").text
    assert "… and 20 more facts" in page.one("section", id="system").text
    assert "Call stack, innermost first (299 frames)" in page.one("section", id="finding").text
    assert "… 259 more …" in page.one("section", id="finding").text
    assert "diverge" in page.one("section", id="streams").text


def test_damage_is_named() -> None:
    """A hole has its place on the page, and what it hides is not shown."""
    for name in ("a", "b"):
        recorded(Path(f"{name}.zarr"), [Do("aten.randn.default", (), "w1", 1, noise=name), *training()[1:]])
    rows = [path for path in Path("a.zarr").rglob("*") if path.is_file() and "/rows/c" in path.as_posix()]
    rows[0].write_bytes(b"no chunk")
    page = parse(html_page(gather("a.zarr", "b.zarr")))
    assert page.one(id="verdict").text == "UNKNOWN"
    assert "Cannot be read" in page.one("section", id="holes").text


def test_what_is_hidden_and_what_is_asked_for(here: Path) -> None:
    """Machine, folders and arguments are on the page only when asked for, and the page says what is left out."""
    CASES["steps"]()
    found = gather("a.zarr", "b.zarr")
    for asked in (Disclosure(), Disclosure(host=True), Disclosure(arguments=True), Disclosure(True, True)):
        text = html_page(gather(here / "a.zarr", here / "b.zarr"), asked)
        assert (str(here) in text) == asked.host
        assert ("left out" in text) == (not (asked.host and asked.arguments))
    assert found.runs.a is not None and found.runs.a.command == ("python", "train.py")


def test_a_page_without_its_style_can_be_read(cases: Cases) -> None:
    """Where a server forbids styles within pages, lines are still lines: shapes say so themselves."""
    lines: list[Node] = parse(html_page(cases["kernel"])).all("polyline")
    assert lines
    assert {line.attributes["fill"] for line in lines} == {"none"}
