"""The selector grammar: what it accepts, what it means, and where its errors point."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rltrace.errors import SelectorError
from rltrace.selectors import Facts, Key, Range, escape, parse_range, parse_selectors

OP = {
    Key.OP: "aten.addmm.default",
    Key.MODULE: "policy.mlp_extractor.policy_net.0",
    Key.SITE: (("stable_baselines3/ppo/ppo.py", "PPO.train"), ("train.py", "main")),
    Key.PHASE: "backward",
    Key.STREAM: "rank0/main",
    Key.STEP: 105,
    Key.NTH: 0,
    Key.KERNEL: ("mkl avx512 2 threads", "void gemm<float, 4>(int)"),
}


def selects(*texts: str, op: Facts = OP) -> bool:
    return parse_selectors(texts).matches(op)


def texts_of(asked: dict[str, list[str]]) -> list[str]:
    """``asked``: by key, what is asked of it."""
    return [f"{key}={value}" for key, values in asked.items() for value in values]


FINDING = {
    "op": ["aten.addmm.default", "aten.addmm", "addmm", "addmm.default", "*mm", "aten.[ab]ddmm", "aten.[!x]ddmm"],
    "module": ["policy.*", "policy.mlp_extractor.polic?_net.0"],
    "site": ["ppo.py", "ppo/ppo.py:train", "stable_baselines3/ppo/ppo.py:PPO.train", "*:PPO.*", "train.py:main"],
    "phase": ["backward"],
    "stream": ["rank0/*"],
    "step": ["105", "100:", ":106", "105:106"],
    "nth": ["0"],
    "kernel": ["*avx512*", r"void gemm<float\, 4>(int)"],
}
LEAVING_OUT = {
    "op": ["aten.mm", "ADDMM", "ddmm", "aten.[!a]ddmm", "addmm,phase=forward"],
    "module": ["policy"],
    "site": ["po.py", "ppo.py:main", "train.py:train"],
    "phase": ["back"],
    "stream": ["rank0"],
    "step": ["106", ":105", "106:"],
    "nth": ["1:"],
    "kernel": ["avx512"],
}
OTHERS = ["all", " all ", "op=aten.[a-c]ddmm", "op=addmm,phase=backward", " op = addmm , phase = backward "]


@pytest.mark.parametrize("text", [*texts_of(FINDING), *OTHERS])
def test_selects(text: str) -> None:
    """Each key, glob form, short form and range finds the op."""
    assert selects(text)


@pytest.mark.parametrize("text", texts_of(LEAVING_OUT))
def test_leaves_out(text: str) -> None:
    """A pattern has to match the whole name, and each condition of a selector has to hold."""
    assert not selects(text)


def test_comma_is_and_repetition_is_or() -> None:
    """Conditions of one selector must all hold; of several selectors one must. Without a step an op is in no range."""
    assert not selects("op=addmm,step=3", "op=mm,step=105")
    assert selects("op=mm", "step=105")
    assert selects(op={**OP, Key.STEP: None}) and not selects("step=0:", op={**OP, Key.STEP: None})


def test_everything_is_known_as_such() -> None:
    """A reader that lists a trace can skip the matching when nothing is left out."""
    assert parse_selectors([]).matches_all
    assert parse_selectors(["op=mm", "all"]).matches_all
    assert not parse_selectors(["op=*"]).matches_all


@pytest.mark.parametrize(
    ("text", "caret", "words"),
    [
        ("addmm", 0, "key=glob"),
        ("opp=addmm", 0, "no key 'opp'"),
        ("op=addmm,modul=x", 9, "no key 'modul'"),
        ("op=", 3, "missing after 'op='"),
        ("module=", 7, "missing after 'module='"),
        ("op=addmm,", 9, "key=glob"),
        ("op=addmm,all", 9, "'all' cannot be combined"),
        ("step=a:3", 5, "number"),
        ("step=3:b", 7, "number"),
        ("step=5:5", 7, "empty"),
        ("step=-1", 5, "number"),
        ("op=[ab", 3, "never closed"),
        ("op=[z-a]", 4, "empty"),
        ("op=mm\\", 5, "backslash"),
        ("site=a:b:c", 8, "path:function"),
        ("site=:f", 5, "path:function"),
    ],
)
def test_errors_point_at_the_character(text: str, caret: int, words: str) -> None:
    """The message repeats the selector and puts a caret under the character that is wrong."""
    with pytest.raises(SelectorError, match=re.escape(words)) as raised:
        parse_selectors([text])
    _, shown, pointer = str(raised.value).split("\n")
    assert shown == f"  {text}"
    assert pointer.index("^") - 2 == caret


def test_range_alone() -> None:
    """``--steps`` takes the same ranges as ``step=``."""
    assert (parse_range("3:7").start, parse_range("3:7").stop) == (3, 7)
    assert (parse_range("3:").start, parse_range("3:").stop) == (3, None)
    with pytest.raises(SelectorError):
        parse_range("7:3")


def test_what_is_left_where_facts_are_known() -> None:
    """Clauses that they rule out are dropped, and conditions that they meet; without a clause nothing is found."""
    selector = parse_selectors(["op=addmm,step=105", "op=mm", "phase=backward"])
    assert selector.simplify({Key.OP: "aten.mm.default"}) == parse_selectors(["all", "phase=backward"])
    assert selector.simplify({Key.OP: "aten.add.Tensor", Key.PHASE: "forward"}).clauses == ()
    assert selector.simplify({}) == selector


def test_both_selectors() -> None:
    """``&`` finds what both find."""
    both = parse_selectors(["op=addmm", "op=mm"]) & parse_selectors(["step=105:"])
    assert both == parse_selectors(["op=addmm,step=105:", "op=mm,step=105:"])


def test_steps_of_a_selector() -> None:
    """The smallest range around all that any clause allows; a clause without a step allows every one."""
    assert parse_selectors(["step=3:9,step=5:", "step=1"]).steps == Range(1, 9)
    assert parse_selectors(["step=3:9", "op=mm,step=4:"]).steps == Range(3, None)
    assert parse_selectors(["step=3:9", "op=mm"]).steps == Range(0, None)


def test_what_finds_calls_of_modules_and_what_ops() -> None:
    """What asks for something that ops alone have finds no calls; what asks for modules alone finds no ops."""
    selector = parse_selectors(["all", "module=a", "module=a,op=mm", "step=3", "nth=0"])
    assert selector.call_clauses == parse_selectors(["all", "module=a", "step=3"])
    assert selector.op_clauses == parse_selectors(["all", "module=a,op=mm", "step=3", "nth=0"])


NAMED = st.sampled_from([Key.MODULE, Key.PHASE, Key.STREAM])


@given(key=NAMED, name=st.text(min_size=1), other=st.text())
def test_escaped_names_match_themselves_alone(key: Key, name: str, other: str) -> None:
    """``escape`` makes a glob for one name, whatever characters are in it."""
    selector = parse_selectors([f"{key}={escape(name)}"])
    assert selector.matches({**OP, key: name})
    assert selector.matches({**OP, key: other}) == (other == name)


@given(st.text() | st.text(alphabet="op=adm,.*?[]!-\\: step0123", max_size=30))
@settings(max_examples=200)
def test_any_text_parses_or_is_refused(text: str) -> None:
    """No text, whether it looks like a selector or not, makes the parser fail in a way of its own."""
    try:
        parse_selectors([text]).matches(OP)
    except SelectorError as error:
        assert "^" in str(error)


def test_arrays_of_a_row_are_chosen_by_name() -> None:
    """Of a row that is selected otherwise, the arrays with a matching name; without that key, all of them."""
    names = ["params['Dense_0']", "key", ""]
    assert parse_selectors(["op=mm,array=*Dense_0*", "op=addmm,array=key"]).simplify(OP).chosen(names) == [
        False,
        True,
        False,
    ]
    assert parse_selectors(["op=addmm"]).simplify(OP).chosen(names) == [True] * 3
