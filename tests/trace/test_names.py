"""Words for the entries of a table; what a table lacks is a question mark or empty, never an error."""

from typing import Any

import pytest
from selector_examples import PAYLOADS

from rltrace.trace.format.schema import Kind, event_name
from rltrace.trace.read.names import Site, Words, layout_text

MESH = {"sizes": [2, 4], "placements": ["Replicate", "Shard(0)"], "names": ["dp", "tp"]}

WORDS = Words(
    {
        **PAYLOADS,
        "layouts": [["float32", [2, 3], [3, 1], "cpu"]],
        "structures": [[0, 0], []],
        "scalars": [["T", "i"]],
        "settings": [{"grad": True}, 5],
    }
)


@pytest.mark.parametrize(
    ("layout", "strides", "text"),
    [
        (None, True, "?"),
        (["float32", [64, 4], [4, 1], "cpu"], True, "float32[64,4]"),
        (["float32", [64, 4], [1, 64], "cpu"], True, "float32[64,4] strides [1, 64]"),
        (["float32", [64, 4], [1, 64], "cpu"], False, "float32[64,4]"),
        (["int64", [], [], "cuda:0"], True, "int64[]@cuda:0"),
        (["int64", [2, 0, 3], [3, 3, 1], "cpu"], True, "int64[2,0,3]"),
        (["float32", [2, 3], "sparse_coo", "cpu"], True, "float32[2,3] sparse_coo"),
        (["float32", [2, 3], "sparse_coo", "cpu"], False, "float32[2,3]"),
        (["float32", [8], [1], "cpu", MESH], True, "float32[8]{dp=2: Replicate, tp=4: Shard(0)}"),
        (["float32", [8], [1], "cpu", {**MESH, "names": None}], False, "float32[8]{2: Replicate, 4: Shard(0)}"),
        (["float32", [8], [1], "cpu", {**MESH, "names": ["dp"]}], False, "float32[8]{dp=2: Replicate}"),
        (["float32", [8], [1], "cpu", {**MESH, "sizes": [2], "names": None}], False, "float32[8]{2: Replicate}"),
        (["float32", [8], [1], "cpu", {**MESH, "sizes": 2}], False, "float32[8]"),
        (["float32", [8], [1], "cpu", {**MESH, "placements": None}], False, "float32[8]"),
        (["float32", [8], [1], "cpu", "of a newer format"], False, "float32[8]"),
    ],
)
def test_layouts(layout: Any, strides: bool, text: str) -> None:
    """Dtype and shape; strides where they are asked for and not those of a contiguous tensor; mesh; other devices."""
    assert layout_text(layout, strides=strides) == text


def test_sites() -> None:
    """User frames, innermost first; a site is inside torch where its innermost frame is."""
    main = Site("train.py", 4, "main", "")
    assert [WORDS.is_inside_torch(site) for site in (0, 1, 2, 3, 99)] == [False, False, True, False, False]
    assert WORDS.stack(1) == (Site("agents/ppo.py", 3, "PPO.train", ""), main)
    assert WORDS.calls(2) == [("agents/ppo.py", "PPO.train")]
    assert (WORDS.innermost(3), WORDS.innermost(0)) == (main, None)
    assert [site.path for site in WORDS.stack(1)] == ["", ""]


def test_what_a_table_lacks() -> None:
    """An unknown id has a name to show, and no facts."""
    assert (WORDS.op(0), WORDS.op(99), WORDS.module(99)) == ("aten.mm.default", "?", "?")
    assert (WORDS.phase(1), WORDS.phase(77)) == ("init", "phase 77")
    assert (WORDS.skeleton(0), WORDS.skeleton(9)) == (["T", "i"], [])
    assert [WORDS.tensors(number) for number in (0, 1, 9)] == [[["float32", [2, 3], [3, 1], "cpu"]] * 2, [], []]
    assert WORDS.layouts(0) == ("float32[2,3]",) * 2
    assert [WORDS.settings(number) for number in (0, 1, 9)] == [{"grad": True}, {}, {}]
    assert (WORDS.evidence(1), WORDS.evidence(99)) == ({"library": "MKL", "threads": 2}, {})
    assert WORDS.size("ops") == 4


def test_events_of_a_newer_format() -> None:
    """Events of a newer format are shown by their number."""
    assert (event_name(Kind.ENVIRONMENT_STEP), event_name(99)) == ("environment-step", "kind 99")


def test_names_of_arguments() -> None:
    """Those of the op's schema; none where no schema was recorded for it."""
    words = Words({"schemas": [None, {"op": 2, "arguments": ["self", "dim"]}, {"op": 0, "arguments": ["x"]}]})
    assert [words.arguments(op) for op in (0, 1, 2)] == [["x"], [], ["self", "dim"]]


def test_no_two_kernels_of_a_process_look_alike() -> None:
    """Short names that are enough within each op are not, where another op ran another kernel with the same."""
    tn, nn = (f"void f<at::native::A<{number}>>(int)" for number in (1, 2))
    kernels = [{"device": "cuda", "names": [name], "launches": [[[1], [32]]]} for name in (tn, nn)]
    assert Words({"kernels": [None, kernels[0]]}).kernel(1) == "f"
    words = Words({"kernels": [None, *kernels, {"device": "cuda", "names": [tn, nn], "launches": [[[1], [32]]] * 2}]})
    assert (words.kernel(1), words.kernel(2), words.kernel(3)) == ("f (… A 1)", "f (… A 2)", "f (… A 1), f (… A 2)")
