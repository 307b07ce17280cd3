"""Hooks of imports call back once a module is loaded, whatever else awaits it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from rltrace.recorder.base.import_hook import ImportHook


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
