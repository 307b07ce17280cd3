"""Several runs in groups, as a person reads it, and as an object."""

from dataclasses import replace
from pathlib import Path

from programs import recorded, training

from rltrace.diff.groups import group
from rltrace.report.groups import CheckRun, RunGroups, groups_document, run_groups
from rltrace.report.text import document_text


def racing(folder: Path, op: str) -> RunGroups:
    """Three runs, each of which computed something else at an op, from the same inputs."""
    paths = [folder / f"{number}.zarr" for number in range(3)]
    for number, path in enumerate(paths):
        program = training()
        program[7] = replace(program[7], name=op, noise=str(number))
        recorded(path, program)
    return run_groups(group(paths), [CheckRun(number, path) for number, path in enumerate(paths, 1)])


def test_what_is_known_of_an_op_is_said_once(tmp_path: Path) -> None:
    """An op that PyTorch says need not repeat itself, at which runs diverge more than once: one sentence."""
    found = racing(tmp_path, "aten.index_put_.default")
    (advice,) = found.advice
    assert "torch.use_deterministic_algorithms(True)" in advice
    text = " ".join(document_text(groups_document(found)).split())
    assert text.count(advice) == text.count("Known about these ops") == 1


def test_nothing_is_known_of_most_ops(tmp_path: Path) -> None:
    """No heading without a sentence."""
    found = racing(tmp_path, "aten.mul.Tensor")
    assert found.advice == ()
    assert "Known about these ops" not in document_text(groups_document(found))
