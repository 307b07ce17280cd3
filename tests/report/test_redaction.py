"""What a report shows to strangers, and what it does not."""

from dataclasses import replace
from pathlib import Path

import pytest
from views import both, compare_in

from rltrace.diff.base.model import Comparison, NamedDifference
from rltrace.extensions.page.data import gather
from rltrace.extensions.page.page import html_page
from rltrace.report.markdown import comparison_markdown
from rltrace.report.redaction import NO_DISCLOSURE, Disclosure, Redactor, omission_note, redacted_comparison
from rltrace.trace.format.schema import Kind

HOMES = "/" + "home"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("open('/data/bob/x.py')", "open('…/x.py')"),
        (f"{HOMES}/someone", "~"),
        ("in /root now", "in ~ now"),
        ("~/project/train.py", "…/train.py"),
        ("~someone/train.py", "…/train.py"),
        ("PATH=/a/b:/c/d", "PATH=…/b:…/d"),
        ("file:///srv/bob/x", "…/x"),
        ("token hf_abcdefghijklmnopqrst", "token ***"),
        ("https://bob:secret@host/x", "https://bob:***@host/x"),
    ],
)
def test_what_is_hidden(text: str, shown: str) -> None:
    """Folders lose all but their last part, homes their owner, tokens everything."""
    assert Redactor(NO_DISCLOSURE).text(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "stable_baselines3/ppo/ppo.py:311",
        "x = a / b / c",
        "1/2/3 and n //2/3",
        "f(x)/a/b",
        "https://example.com/a/b/c",
        "rank0/main/thread:loader",
        "logger.record('train/loss', loss)",
        "float32[64,4]@cuda:0",
    ],
)
def test_what_stays(text: str) -> None:
    """Names with a slash in them, divisions and addresses are no folders of this machine."""
    assert Redactor(NO_DISCLOSURE).text(text) == text


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (
            '(cd ~/secret && rltrace record -o "$OLDPWD/"a.zarr -- python train.py 7)  # and KEY',
            "rltrace record -o a.zarr -- python train.py …  # and KEY",
        ),
        ("(cd '/a b && c' && rltrace diff a.zarr b.zarr)", "rltrace diff a.zarr b.zarr"),
        ("rltrace record -- /usr/bin/python3 -u sub/train.py --key 7", "rltrace record -- python3 … sub/train.py …"),
        ("rltrace record -- torchrun --nproc=2 /abs/train.py 7", "rltrace record -- torchrun … train.py …"),
        ("rltrace record -- python -m pkg.train --x", "rltrace record -- python -m pkg.train …"),
        ("rltrace record -- python -c 'login(7)'", "rltrace record -- python …"),
        ("MKL_X=1 rltrace record -- ./run", "MKL_X=1 rltrace record -- ./run"),
        ("rltrace ops /data/bob/a.zarr op=aten.mm.default", "rltrace ops a.zarr op=aten.mm.default"),
        ("a line with 'one quote", "a line with 'one quote"),
        ("rltrace record -- python a.py 7  # and KEY", "rltrace record -- python a.py …  # and KEY"),
        ("rltrace record -- python a.py 'x  # and y'", "rltrace record -- python a.py …"),
    ],
)
def test_commands(command: str, shown: str) -> None:
    """What was run is said, not how, nor where."""
    assert Redactor(NO_DISCLOSURE, "/data/bob/a.zarr").command(command) == shown


def test_arguments_on_request() -> None:
    """Arguments that are asked for are shown, without folders; so are folders, without arguments."""
    command = '(cd ~/x && rltrace record -o "$OLDPWD/"a.zarr -- python /srv/bob/train.py --config /srv/bob/c.yaml)'
    without_folders = "rltrace record -o a.zarr -- python …/train.py --config …/c.yaml"
    assert Redactor(Disclosure(arguments=True)).command(command) == without_folders
    without_arguments = '(cd ~/x && rltrace record -o "$OLDPWD/"a.zarr -- python /srv/bob/train.py …)'
    assert Redactor(Disclosure(host=True)).command(command) == without_arguments
    assert Redactor(Disclosure(host=True, arguments=True)).command(command) == command


@pytest.mark.parametrize(
    ("path", "shown"),
    [("a.zarr", "a.zarr"), ("runs/a.zarr", "runs/a.zarr"), ("/x/bob/a.zarr", "a.zarr"), ("../bob/a.zarr", "a.zarr")],
)
def test_traces_are_called_by_name(path: str, shown: str) -> None:
    """A path that leads elsewhere on this machine becomes a name."""
    assert Redactor(NO_DISCLOSURE).trace_name(path) == shown


def test_a_short_trace_name_changes_no_other_text() -> None:
    """A trace called ``/a`` does not eat the start of every path in the report."""
    assert Redactor(NO_DISCLOSURE, "/a").text("ppo/a.py and x/a in /a") == "ppo/a.py and x/a in a"


def comparison(folder: Path) -> Comparison:
    for trace, name in both(folder):
        trace.op("aten.add.Tensor", site=("train.py", 3, "main", "x = load('/srv/bob/x')"), outputs=[name])
    return compare_in(folder)


def test_a_whole_comparison(tmp_path: Path) -> None:
    """No text of a comparison keeps a folder, whichever field it stands in; enumerations stay what they are."""
    fact = NamedDifference("env.NCCL_TOPO_FILE", "/a/b/topology.xml", "/c/d/topology.xml")
    found = replace(comparison(tmp_path), system=(fact,), notes=("see /srv/bob/log",))
    shown = redacted_comparison(found)
    assert str(tmp_path) not in repr(shown)
    assert "bob" not in repr(shown)
    assert type(shown.verdict) is type(found.verdict)
    assert shown.first_value.outputs == found.first_value.outputs
    assert shown.system[0].a == "…/topology.xml"
    assert shown.system[0].b == "…/topology.xml (what differs is not shown)"
    assert str(tmp_path) in repr(redacted_comparison(found, Disclosure(host=True)))


def test_a_finding_that_is_an_event_goes_out_on_every_form(tmp_path: Path) -> None:
    """What an environment returned, with its cells by name, stands on the page and in the Markdown as any op does."""
    for trace, name in both(tmp_path):
        seen = {"observation": name}
        trace.event(Kind.ENVIRONMENT_STEP, "environment 0", owner="Walk", counts={"step": 1}, digests=seen)
        trace.op("aten.add.Tensor", inputs=[("outside", name)], outputs=[name])
    material = gather(tmp_path / "a.zarr", tmp_path / "b.zarr")
    assert material.comparison.first_value is not None and material.comparison.first_value.event is not None
    page, text = html_page(material), comparison_markdown(material.comparison)
    assert "<dt>event</dt>" in page and "<dt>field</dt><dd><div><code>observation</code></div>" in page
    assert "--values" not in page  # of an event no tensors can be kept
    assert "- event: `environment-step`" in text and "- field `observation`: A " in text and "inputs" not in text


def test_what_is_missing_is_named() -> None:
    """One sentence, and how to get it."""
    assert omission_note(NO_DISCLOSURE) == (
        "Machine, folders and command arguments are left out (--with-host and --with-arguments show them)."
    )
    assert omission_note(Disclosure(host=True)) == "Command arguments are left out (--with-arguments show them)."
    assert omission_note(Disclosure(True, True)) == ""
