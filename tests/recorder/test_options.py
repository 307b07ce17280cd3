"""The table of options: what comes from it is consistent, and says the same to a command line and to a program."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

import rltrace
from rltrace.errors import UsageError
from rltrace.recorder.base.options import ALL_STEPS, GROUPS, OPTIONS, RecordOptions, check_options, value_of


def test_entries_refer_to_entries() -> None:
    """Every field but the trace has one; its group, and the options that it names, are there."""
    assert [*OPTIONS] == [each.name for each in fields(RecordOptions)][1:]
    for option in OPTIONS.values():
        assert bool(option.group) == option.flag.startswith("--") and option.group in (*GROUPS, "")
        assert {*option.named_with, option.needs[0]} <= {*OPTIONS, ""}


def test_the_library_function_takes_options_of_the_table(tmp_path: Path) -> None:
    """All that it takes are options of the command, and another name is none."""
    taken = rltrace.RecordArguments.__annotations__
    assert taken.keys() <= {name for name, option in OPTIONS.items() if option.group}
    with pytest.raises(TypeError, match="has no option 'valeus'"):
        rltrace.record(tmp_path / "a.zarr", valeus="all")  # type: ignore[call-arg]


def test_the_environment_hands_on_every_option(tmp_path: Path) -> None:
    """Of each type: numbers, texts, steps, and several texts."""
    options = RecordOptions(
        str(tmp_path),
        level="step",
        steps=(3, None),
        until=4,
        rows=("a", "b"),
        row_axes=(0, 1),
        state=(1, 2),
        engine="native",
        asleep=True,
    )
    variables: dict[str, str] = {}
    options.to_environment(variables)
    assert RecordOptions.from_environment(variables) == options
    assert RecordOptions.from_environment({"RLTRACE_RECORD": json.dumps({"trace": str(tmp_path)})}) == RecordOptions(
        str(tmp_path)
    )


def test_what_a_trace_names() -> None:
    """Options that are set, as they are read by people, with those that say more of them; no others."""
    assert RecordOptions("a.zarr", level="step", steps=(1, 2)).extras() == {}
    options = RecordOptions("a.zarr", values=("op=mm",), state=(3, None), processes=("a", "b"), engine="mode")
    assert options.extras() == {
        "processes": "a,b",
        "engine": "mode",
        "values": ["op=mm"],
        "values_inputs": False,
        "values_limit": 1 << 30,
        "state": "3:",
    }


def test_what_the_narration_says() -> None:
    """Each option that is set says its part, in the order of the table."""
    options = RecordOptions("a.zarr", steps=ALL_STEPS, until=4, verify_inputs=True, values=("op=mm", "op=sum"))
    assert options.narration() == ", until step 4 is done, and every input, with values of op=mm or op=sum"
    assert not options.windowed and options.in_python == "--verify-inputs"


def test_parity_means_rows_of_all_calls_where_no_others_are_requested() -> None:
    assert RecordOptions("a.zarr", parity=True).rows == ("module=*",)
    assert RecordOptions("a.zarr", parity=True, rows=("all",)).rows == ("all",)


@pytest.mark.parametrize(
    ("values", "by_flags", "by_program"),
    [
        (
            {"level": "step", "values": ("all",)},
            "--values records tensors of ops; --level step records no ops",
            "values records tensors of ops; level step records no ops",
        ),
        (
            {"verify_inputs": True},
            "--verify-inputs digests every input of every op in a window: give its steps with --steps A:B",
            "verify_inputs digests every input of every op in a window: give its steps with steps",
        ),
        (
            {"values_inputs": True},
            "--values-inputs extends --values SELECTOR: give one",
            "values_inputs extends values: give one",
        ),
        (
            {"engine": "native", "level": "step"},
            "--engine native records ops, and with --level step it cannot: leave one of them out",
            "engine native records ops, and with level step it cannot: leave one of them out",
        ),
        ({"compile": "all"}, "--compile 'all' is none of eager", "compile 'all' is none of eager"),
    ],
)
def test_what_does_not_go_together(values: dict[str, object], by_flags: str, by_program: str) -> None:
    """One rule for both, which names options as each writes them."""
    options = RecordOptions("a.zarr", **values)  # type: ignore[arg-type]
    for given, error in (
        ({name: OPTIONS[name].flag for name in values}, by_flags),
        ({n: n for n in values}, by_program),
    ):
        with pytest.raises(UsageError) as raised:
            check_options(options, given)
        assert str(raised.value) == error


def test_what_is_read(tmp_path: Path) -> None:
    """A text of the command line, and what a program passes, are one value."""
    assert value_of("steps", "3:5", "--steps") == value_of("steps", [3, 5], "steps") == (3, 5)
    assert value_of("values", "all", "values") == value_of("values", ["all"], "values") == ("all",)
    assert value_of("values_limit", "1kB", "--values-limit") == value_of("values_limit", 1000, "values_limit") == 1000
    with pytest.raises(UsageError, match="RLTRACE_STEPS 5:3 is empty"):
        value_of("steps", "5:3", "RLTRACE_STEPS")
