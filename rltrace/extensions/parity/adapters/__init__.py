"""Adapters: what rltrace reads of an engine beside the arguments of its models, for the recorder."""

from __future__ import annotations

import ast
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rltrace.errors import UsageError

if TYPE_CHECKING:
    from rltrace.recorder.base.options import RecordOptions

CORE: Final = ("torch", "jax")
"""Libraries whose import starts a recorder."""


def check_version(library: str, *tested: str) -> None:
    """Raise UsageError unless the version of an imported library begins with one that its adapter was tested with."""
    version = str(sys.modules[library].__version__)
    if not any(f"{version}.".startswith(f"{one}.") for one in tested):
        raise UsageError(f"what is read of {library} is known for {', '.join(tested)}, not for {version}")


def library_of(path: str) -> str:
    """The constant ``LIBRARY`` of an adapter's file, which is read and not run. Raises UsageError."""
    try:
        statements = ast.parse(Path(path).read_text("utf-8")).body
    except (OSError, ValueError, SyntaxError) as error:
        raise UsageError(f"the adapter {path} cannot be read: {error}") from None
    for one in statements:
        named = isinstance(one, ast.Assign) and [ast.unparse(target) for target in one.targets] == ["LIBRARY"]
        value = one.value if named and isinstance(one, ast.Assign) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value not in CORE:
            return value.value
    raise UsageError(f'the adapter {path} needs a line such as LIBRARY = "mylib", the module that it reads')


def start_files(options: RecordOptions, token: str) -> None:
    """Run the files of ``--adapter`` of the libraries that this process has imported, once each."""
    for path in options.adapters:
        name = f"rltrace adapter {path}"
        if library_of(path) in sys.modules and name not in sys.modules:
            spec = spec_from_file_location(name, path)
            if spec is None or spec.loader is None:
                raise UsageError(f"the adapter {path} is no file of Python")
            module = sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(module)
            module.start(options, token)
