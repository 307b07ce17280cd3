"""The outcome of an experiment: its JSON, there and back, and what is no outcome."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rltrace.diff.base.model import Pair
from rltrace.experiment.outcome import (
    Arm,
    ArmName,
    ArmState,
    ExperimentResult,
    OriginClass,
    Outcome,
    OutcomeError,
    read_outcome,
    write_outcome,
)
from rltrace.json import from_json, to_json
from rltrace.trace.read.names import Site

TEXT = st.text(max_size=12)
COUNT = st.integers(0, 2**40)
ARMS = st.builds(
    Arm, st.sampled_from(ArmName), st.sampled_from(ArmState), TEXT, TEXT, st.none() | TEXT
)  # fmt: skip
CLASSES = st.builds(
    OriginClass,
    op=TEXT,
    kernel=st.builds(Pair, st.none() | TEXT, st.none() | TEXT),
    site=st.none() | st.builds(Site, TEXT, COUNT, TEXT, TEXT),
    count=COUNT,
    share=st.floats(0, 1),
    matters=st.none() | st.booleans(),
    stream=TEXT,
    first_row=st.none() | COUNT,
    first_step=st.none() | COUNT,
    max_ulp=st.none() | COUNT,
    max_relative=st.none() | st.floats(0, 2),
)
OUTCOMES = st.builds(
    ExperimentResult,
    word=st.none() | st.sampled_from(Outcome),
    explanation=TEXT,
    a=TEXT,
    b=TEXT,
    first_step=st.none() | COUNT,
    end_step=st.none() | COUNT,
    arms=st.lists(ARMS, max_size=4).map(tuple),
    classes=st.lists(CLASSES, max_size=3).map(tuple),
    trials=COUNT,
    flaky=COUNT,
    advice=st.lists(TEXT, max_size=2).map(tuple),
)
OUTCOME = ExperimentResult(
    Outcome.CONFIRMED,
    "all four arms came out as a cause would have it",
    "a.zarr",
    "b.zarr",
    37,
    39,
    (Arm(ArmName.A0, ArmState.AS_EXPECTED, "A again, unchanged", "matches A"),),
    (),
)


@given(OUTCOMES)
def test_there_and_back(outcome: ExperimentResult) -> None:
    """What was written is what is read, every field of it, through the text of the file."""
    assert from_json(ExperimentResult, json.loads(json.dumps(to_json(outcome)))) == outcome


def test_file(tmp_path: Path) -> None:
    """A file is written in one go and names its schema; fields of a later version are no trouble."""
    path = tmp_path / "confirm.json"
    write_outcome(path, OUTCOME)
    assert read_outcome(path) == OUTCOME and list(tmp_path.iterdir()) == [path]
    document = json.loads(path.read_text())
    assert document["schema"] == ExperimentResult.SCHEMA
    path.write_text(json.dumps({**document, "later": {"more": 1}}))
    assert read_outcome(path) == OUTCOME
    write_outcome(path, replace(OUTCOME, word=None))
    assert read_outcome(path).word is None


def broken(**fields: Any) -> str:
    return json.dumps({**to_json(OUTCOME), **fields})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "its schema is None"),
        ('{"schema": "rltrace.diff/1"}', "its schema is 'rltrace.diff/1'"),
        (broken(schema="rltrace.confirm/2"), "this rltrace reads rltrace.confirm/1"),
        (broken(word="proven"), "'proven' is not a valid Outcome"),
        (broken(arms=[{"name": "A0"}]), '"arms[0].state" is missing'),
        (broken(trials="3"), '"trials" is no int'),
        (broken(trials=True), '"trials" is no int'),
        (broken(classes=None), '"classes" is no list'),
    ],
)
def test_what_is_no_outcome(tmp_path: Path, text: str, why: str) -> None:
    """Anything else in the file is reported in one sentence that names the file."""
    path = tmp_path / "confirm.json"
    path.write_text(text)
    with pytest.raises(OutcomeError) as raised:
        read_outcome(path)
    assert why in str(raised.value) and str(path) in str(raised.value)


def test_an_older_file(tmp_path: Path) -> None:
    """One whose keys had other names is refused in a sentence that says what to do."""
    path = tmp_path / "confirm.json"
    document = to_json(OUTCOME)
    document["because"] = document.pop("explanation")
    path.write_text(json.dumps(document))
    with pytest.raises(OutcomeError, match=r'"explanation" is missing.*run rltrace confirm again'):
        read_outcome(path)


def test_no_file(tmp_path: Path) -> None:
    """A file that is not there, and a folder in its place."""
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(OutcomeError, match="cannot be read"):
            read_outcome(path)
