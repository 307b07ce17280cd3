"""Functions of other libraries that are replaced while a process is recorded, and put back where they still stand."""

import functools
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.amp.grad_scaler import GradScaler
from torch.autograd import graph

import rltrace
from rltrace.recorder.base.patching import ImportHook, Patches


class Base:
    def act(self, times: int = 1) -> str:
        return "act " * times


class Derived(Base):
    pass


def loudly(original: Callable[..., str], *args: Any, **kwargs: Any) -> str:
    return original(*args, **kwargs).upper()


@pytest.mark.parametrize("cls", [Base, Derived])
def test_wrapped_and_restored(cls: type[Base]) -> None:
    """Arguments and result pass through; a method of the class is put back, an inherited one is inherited again."""
    before = dict(vars(cls))
    patches = Patches()
    assert not patches
    patches.wrap(cls, "act", loudly)
    assert patches
    assert cls().act(times=2) == "ACT ACT "
    assert cls.act.__name__ == "act"
    patches.undo_all()
    assert not patches
    assert dict(vars(cls)) == before
    assert cls().act() == "act "


def test_what_there_is_not_is_left_alone() -> None:
    """Another version of a library may lack a function."""
    patches = Patches()
    patches.wrap(Base, "nothing", loudly)
    assert not patches and not hasattr(Base, "nothing")


def test_one_function_in_several_places() -> None:
    """It is one function there afterwards, too; another one of that name is not touched."""
    one, other = Base().act, str
    places = SimpleNamespace(act=one), SimpleNamespace(act=one), SimpleNamespace(act=other), None
    patches = Patches()
    patches.wrap_all(places, "act", loudly)
    assert places[0].act is places[1].act is not one
    assert places[1].act() == "ACT "
    assert places[2].act is other
    patches.undo_all()
    assert places[0].act is places[1].act is one


def test_a_later_patch_of_another_library_stays() -> None:
    """It is not overwritten, and what it calls in turn is the original again."""
    patches = Patches()
    holder = SimpleNamespace(act=Base().act)
    patches.wrap(holder, "act", loudly)
    ours = holder.act
    holder.act = theirs = lambda: f"<{ours()}>"
    assert holder.act() == "<ACT >"
    patches.undo_all()
    assert holder.act is theirs
    assert holder.act() == "<act >"


# --- all that a recording replaces ------------------------------------------------------------------------------------

REPLACED = [
    (torch.nn.Module, "__call__"),
    (torch.Tensor, "numpy"),
    (torch, "load"),
    (torch, "_sobol_engine_draw"),
    (GradScaler, "__init__"),
    (GradScaler, "update"),
    (GradScaler, "step"),
    (graph, "_engine_run_backward"),
    (threading.Thread, "start"),
    (subprocess.Popen, "__init__"),
    (torch._C.Future, "then"),
    (os, "execv"),
]


@pytest.fixture
def before() -> Iterator[list[Any]]:
    """The functions as they are; they are so again after the test."""
    found = [getattr(*place) for place in REPLACED]
    yield found
    for (holder, name), function in zip(REPLACED, found, strict=True):
        setattr(holder, name, function)


def test_the_programs_own_patches_stay(before: list[Any], tmp_path: Path) -> None:
    """A program that patches the same functions while it is recorded keeps its patches when the recording ends."""
    theirs = []
    with rltrace.record(tmp_path / "a.zarr"):
        for holder, name in REPLACED:
            theirs.append(functools.wraps(getattr(holder, name))(functools.partial(getattr(holder, name))))
            setattr(holder, name, theirs[-1])
    assert [getattr(*place) for place in REPLACED] == theirs


def test_several_hooks_await_one_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is called once, by name or for what it finds, when the module has been run."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "awaited_by_three.py").write_text("ready = True")
    called: list[str] = []
    errors: list[Exception] = []

    def notes(name: str) -> object:
        return lambda module: called.append(f"{name} {module.ready}")

    hooks = [
        ImportHook({"awaited_by_three": notes("first")}, errors.append),
        ImportHook({"awaited_by_three": notes("second")}, errors.append),
        ImportHook({}, errors.append, lambda spec: notes("third") if "awaited" in spec.name else None),
    ]
    before = list(sys.meta_path)
    for hook in hooks:
        hook.install()
    try:
        module = importlib.import_module("awaited_by_three")
    finally:
        for hook in hooks:
            hook.uninstall()
        sys.modules.pop("awaited_by_three", None)
    assert sorted(called) == ["first True", "second True", "third True"]
    assert not errors
    assert type(module.__spec__).__name__ == "ModuleSpec"
    assert sys.meta_path == before


def test_a_failing_search_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The import goes on."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "searched_for.py").touch()
    errors: list[Exception] = []

    def find(spec: object) -> None:
        raise ValueError("another version")

    hook = ImportHook({}, errors.append, find)
    hook.install()
    try:
        importlib.import_module("searched_for")
    finally:
        hook.uninstall()
        sys.modules.pop("searched_for", None)
    assert [str(error) for error in errors] == ["another version"]
