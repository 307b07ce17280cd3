"""Launch rows of functions of shared libraries: through ctypes, and of Python's extensions that use torch.

Owns which calls are recorded, and their patches. A ctypes function gets addresses: those that the program asked a
tensor for (``data_ptr``) are its tensors. An extension is one whose file needs a library of torch; its functions, those
of its modules, and the methods of its classes are recorded. Calls without tensors are left alone, as are those with a
callback: ops in that are rows. Tensors that such a call returns and that no op has written have a row, in which it
writes them. Code may keep an address that it gets: from then on the memory is shared with it, and digested at each use.
What reaches code in another way is not seen, as addresses within structures.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import mmap
import struct
import sys
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import torch
from xxhash import xxh3_64_hexdigest

from rltrace.recorder.base.dispatch_mode import current_observer
from rltrace.recorder.base.patching import Patches
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.core.calls import op_tensors
from rltrace.recorder.core.kernel_launches import UNSEEN, KernelLaunch, without_address
from rltrace.recorder.core.op_recorder import tensors_in
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.core.regions import RegionName
from rltrace.recorder.core.storages import Storages, address_of
from rltrace.recorder.digests.layouts import data_address
from rltrace.trace.kernels.evidence import CODE

Tensor = torch.Tensor

MAX_CODE: Final = 1 << 26
"""Bytes of a library's file that is fingerprinted; larger ones are not."""

WITHOUT_ROWS: Final = sys.stdlib_module_names | {"torch", "functorch", "numpy"}
"""Packages whose extensions are not looked at: torch's own dispatch, and others need nothing of torch."""

FUNCTIONS: Final = ("builtin_function_or_method", "nb_func")
"""Types of functions of extensions: of Python's C API and pybind11, of nanobind."""

METHODS: Final = ("instancemethod", "method_descriptor", "wrapper_descriptor", "nb_method")
"""Types of methods in their classes: of pybind11, of Python's C API (the last one a constructor), of nanobind."""

EXTENSION: Final = "extension."


# --- addresses --------------------------------------------------------------------------------------------------------


class _Place(NamedTuple):
    """A tensor whose address the program has asked for."""

    storage: int
    dtype: torch.dtype
    device: torch.device
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]
    end: int
    """Address behind its last element."""


class TensorAddresses:
    """The tensors whose addresses the program has asked for. Keeps none of them alive."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages
        self._places: dict[int, _Place] = {}
        self._starts: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._starts)

    def add(self, tensor: Tensor, start: int) -> None:
        """``start``: what ``tensor.data_ptr()`` has returned."""
        if type(tensor) not in (Tensor, torch.nn.Parameter) or not start:
            return
        storage = address_of(tensor)
        known = self._places.get(start)
        shape, stride = tensor.shape, tensor.stride()
        if known is not None and (known.storage, known.shape, known.stride) == (storage, shape, stride):
            return
        if storage not in self._storages.handles:
            self._storages.follow_outside(storage, tensor)
        last = sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if tensor.numel() else -1
        end = start + (int(last) + 1) * tensor.element_size()
        if known is None:
            insort(self._starts, start)
        self._places[start] = _Place(
            storage, tensor.dtype, tensor.device, int(tensor.storage_offset()), shape, stride, end
        )

    def tensor_at(self, address: int) -> Tensor | None:
        """The tensor that an address is in; None: it is no tensor's, or that no longer exists."""
        at = bisect_right(self._starts, address) - 1
        place = self._places[self._starts[at]] if at >= 0 else None
        if place is None or address >= place.end:
            return None
        start = self._starts[at]
        found = self._made(place)
        if found is None or data_address(found) != start:  # freed since
            del self._starts[at], self._places[start]
            return None
        return found

    def _made(self, place: _Place) -> Tensor | None:
        handle = self._storages.handles.get(place.storage)
        raw = None if handle is None else torch.UntypedStorage._new_with_weak_ptr(handle)
        if raw is None:
            return None
        with torch_function_disabled(), torch.no_grad(), torch._C._DisableTorchDispatch():
            plain = torch.empty(0, dtype=place.dtype, device=place.device)
            return plain.set_(raw, place.offset, place.shape, place.stride)


# --- calls ------------------------------------------------------------------------------------------------------------


class ForeignCalls:
    """The patches of ctypes and of extensions, from ``install`` to ``uninstall``."""

    def __init__(self, process: ProcessState) -> None:
        self._process = process
        self._storages = process.storages
        self._fail = process.fail
        self._addresses = TensorAddresses(process.storages)
        self._patches = Patches()
        self._launches: dict[tuple[object, ...], KernelLaunch] = {}
        self._kept: list[object] = []
        """Functions whose ``id()`` is in a key."""
        self._codes: dict[str, str] = {}

    def install(self) -> None:
        if self._patches:
            return
        self._patches.replace(Tensor, "data_ptr", self._noting(Tensor.data_ptr))
        self._patches.wrap(ctypes.CDLL, "__init__", self._library_loaded)
        for functions in ctypes._CFuncPtr.__subclasses__():  # type: ignore[attr-defined]
            if functions.__name__ == "_FuncPtr":
                self._patch_functions(functions)
        for module in list(sys.modules.values()):
            self._patch_extension(module)
        built = {"torch.utils.cpp_extension": self._patch_builds}
        self._patches.on_import(built, self._fail, self._extension_loaded)

    def uninstall(self) -> None:
        self._patches.undo_all()

    def _launch(self, function: Any, name: str, file: str | None, forms: tuple[object, ...]) -> KernelLaunch:
        """``forms``: the names of its arguments, in order."""
        key = (id(function), *forms)
        launch = self._launches.get(key)
        if launch is None:
            self._kept.append(function)
            settings = ("isa", "threads") if name.startswith(EXTENSION) else ("threads",)  # of ops of torch within
            evidence = {"library": Path(file or "the process").name, CODE: self._code(file)}
            launch = self._launches[key] = KernelLaunch(
                RegionName(name, {word: value for word, value in evidence.items() if value}, settings),
                dict.fromkeys(map(str, forms), False),
                self._storages,
                returns_new=True,
            )
        return launch

    def _code(self, file: str | None) -> str:
        """Fingerprint of a library's file; empty: it is not known, or too large."""
        if file is None or not Path(file).is_file() or Path(file).stat().st_size > MAX_CODE:
            return ""
        if file not in self._codes:
            self._codes[file] = xxh3_64_hexdigest(Path(file).read_bytes())
        return self._codes[file]

    # --- ctypes -----------------------------------------------------------------------------------------------------

    def _noting(self, original: Callable[[Tensor], int]) -> Callable[[Tensor], int]:
        """``Tensor.data_ptr``, which also notes where the tensor is."""
        patches, add, fail = self._patches, self._addresses.add, self._fail

        @functools.wraps(original)
        def data_ptr(tensor: Tensor) -> int:
            address = original(tensor)
            try:
                if patches and current_observer() is not None:
                    with torch_function_disabled():
                        add(tensor, address)
            except Exception as error:
                fail(error)
            return address

        return data_ptr

    def _library_loaded(self, original: Any, library: Any, /, *args: Any, **kwargs: Any) -> None:
        original(library, *args, **kwargs)
        self._patch_functions(library._FuncPtr)

    def _patch_functions(self, functions: Any) -> None:
        self._patches.wrap(functions, "__call__", self._call)
        functions.__call__._torchdynamo_disable = True  # as without the patch, a graph break

    def _call(self, original: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """In place of a call of a ctypes function."""
        if not self._addresses or kwargs or current_observer() is None:
            return original(function, *args, **kwargs)
        try:
            given = [self._given(value) for value in args]
            found = any(isinstance(value, (Tensor, list)) for value in given)
            if not found or any(isinstance(value, ctypes._CFuncPtr) for value in args):  # type: ignore[attr-defined]
                launch = None
            else:
                launch = self._launch(function, *_name_of(function), tuple(range(len(given))))
        except Exception as error:  # objects of other kinds
            self._process.report_missing(UNSEEN, f"ctypes.{function.__name__} ({type(error).__name__})")
            launch = None
        if launch is None:
            return original(function, *args)
        return self._run(launch, lambda: original(function, *args), tuple(given), {})

    def _run(self, launch: KernelLaunch, call: Callable[[], Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A launch, whose code may write the memory of these tensors later, too."""
        try:
            return launch.run(call, args, kwargs)
        finally:
            try:
                with torch_function_disabled():
                    for tensor in op_tensors(args, kwargs):
                        address = address_of(tensor) if tensor.is_cpu else 0
                        if address:
                            self._storages.record_shared(address, tensor.untyped_storage())
            except Exception as error:
                self._fail(error)

    def _given(self, value: Any) -> Any:
        """An argument as a row has it: the tensor at an address, the tensors at several, a number, a text."""
        if isinstance(value, ctypes.Array) and issubclass(value._type_, (ctypes.c_void_p, ctypes._Pointer)):
            items = [self._given(item) for item in value]
            return items if all(isinstance(item, Tensor) for item in items) and items else value
        if hasattr(value, "_obj"):  # byref
            address: Any = ctypes.addressof(value._obj)
        elif isinstance(value, ctypes._Pointer):
            address = ctypes.addressof(value.contents) if value else 0
        else:
            address = getattr(value, "value", value)
        if type(address) is int:
            found = self._addresses.tensor_at(address)
            return without_address(address) if found is None else found
        return address

    # --- extensions -------------------------------------------------------------------------------------------------

    def _extension_loaded(self, spec: Any) -> Callable[[ModuleType], None] | None:
        is_extension = isinstance(spec.loader, importlib.machinery.ExtensionFileLoader)
        return self._patch_extension if is_extension and _needs_torch(spec.origin) else None

    def _patch_builds(self, module: Any) -> None:
        self._patches.wrap(module, "_import_module_from_library", self._built)

    def _built(self, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        """An extension that ``torch.utils.cpp_extension`` has compiled, which is imported by no finder."""
        module = original(*args, **kwargs)
        self._patch_extension(module)
        return module

    def _patch_extension(self, module: Any) -> None:
        if type(module) is not ModuleType or str(vars(module).get("__file__")).endswith(".py"):  # most of thousands
            return
        spec: Any = module.__spec__
        if module.__name__.partition(".")[0] in WITHOUT_ROWS:
            return
        if (
            spec is None
            or not isinstance(spec.loader, importlib.machinery.ExtensionFileLoader)
            or not _needs_torch(spec.origin)
        ):
            return
        self._patch_module(module, EXTENSION + module.__name__.rpartition(".")[2], spec.origin)

    def _patch_module(self, module: ModuleType, title: str, file: str) -> None:
        for name, value in list(vars(module).items()):
            named = f"{title}.{name}"
            if type(value).__name__ in FUNCTIONS:
                self._patches.replace(module, name, ExtensionFunction(value, named, file, self._call_extension))
            elif isinstance(value, type) and value.__module__ == module.__name__:
                self._patch_class(value, named, file)
            elif type(value) is ModuleType and value.__name__ == f"{module.__name__}.{name}" and value.__spec__ is None:
                self._patch_module(value, named, file)

    def _patch_class(self, holder: type, title: str, file: str) -> None:
        """The methods of a class, its constructor among them."""
        for name, value in list(vars(holder).items()):
            original = value.__func__ if isinstance(value, staticmethod) else value
            kind = type(original).__name__
            if kind not in (*FUNCTIONS, *METHODS) or (name.startswith("__") and name not in ("__init__", "__call__")):
                continue
            function = ExtensionFunction(original, f"{title}.{name}", file, self._call_extension)
            try:
                self._patches.replace(holder, name, function.as_method() if kind in METHODS else function)
            except TypeError:  # a class that cannot be changed
                return

    def _call_extension(
        self, function: ExtensionFunction, owner: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """``owner``: the object whose method it is; empty for a function."""
        original = function.__wrapped__
        if not self._patches or current_observer() is None:
            return original(*owner, *args, **kwargs)
        if not _takes_tensors((*args, *kwargs.values())):
            result = original(*owner, *args, **kwargs)
            self._record_results(function, result)
            return result
        try:
            launch = self._launch(original, function.title, function.file, (*range(len(args)), *kwargs))
        except Exception as error:
            self._process.report_missing(UNSEEN, f"{function.title} ({type(error).__name__})")
            return original(*owner, *args, **kwargs)
        given = tuple(without_address(value) for value in args)
        named = {name: without_address(value) for name, value in kwargs.items()}
        return self._run(launch, lambda: original(*owner, *args, **kwargs), given, named)

    def _record_results(self, function: ExtensionFunction, result: Any) -> None:
        """A row in which a call without tensors writes what it returned, where no op has written any of it."""
        special = self._storages.special
        try:
            with torch_function_disabled():
                tensors = tuple(
                    tensor
                    for tensor in tensors_in(result)
                    if type(tensor) is Tensor and getattr(special.get(address_of(tensor)), "mask", True) is False
                )
            if tensors:
                launch = self._launch(function.__wrapped__, function.title, function.file, tuple(range(len(tensors))))
                launch.run(lambda: None, tensors, {})
        except Exception as error:
            self._fail(error)


class ExtensionFunction:
    """In place of a function of an extension; like that one no descriptor, as it may be an attribute of a class."""

    def __init__(self, original: Any, title: str, file: str, call: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original, updated=())
        self.title = title
        self.file = file
        self._call = call

    __wrapped__: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self, (), args, kwargs)

    def as_method(self) -> Callable[..., Any]:
        """In place of a method."""
        call = self._call

        @functools.wraps(self.__wrapped__, updated=())
        def method(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
            return call(self, (owner,), args, kwargs)

        method._torchdynamo_disable = True  # type: ignore[attr-defined]
        return method

    __call__._torchdynamo_disable = True  # type: ignore[attr-defined]  # as the function itself, a graph break

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __reduce__(self) -> Any:
        return self.__wrapped__.__reduce__()


def _takes_tensors(values: Sequence[Any]) -> bool:
    """Whether there is a tensor among the arguments of a call, and no callback."""
    found = False
    for value in values:
        if isinstance(value, Tensor) or (isinstance(value, (list, tuple)) and _takes_tensors(value)):
            found = True
        elif callable(value) and not isinstance(value, type):
            return False
    return found


def _name_of(function: Any) -> tuple[str, str | None]:
    """``ctypes.libtoy.scale``, and the file of the library."""
    library = (function._objects or {}).get("0")
    file = getattr(library, "_name", None)
    stem = Path(file).name.partition(".")[0] if isinstance(file, str) else "process"
    return f"ctypes.{stem}.{getattr(function, '__name__', 'function')}", file if isinstance(file, str) else None


# --- ELF --------------------------------------------------------------------------------------------------------------


TORCH_LIBRARIES: Final = ("libtorch", "libc10")


@functools.cache
def _needs_torch(file: str | None) -> bool:
    """Whether a shared library needs one of torch's."""
    try:
        return any(name.startswith(TORCH_LIBRARIES) for name in needed_libraries(Path(file or "")))
    except (OSError, ValueError, struct.error):  # no 64-bit ELF file
        return False


def needed_libraries(file: Path) -> Iterator[str]:
    """The libraries that a shared library needs (``DT_NEEDED``), read from its ELF headers. Raises ValueError."""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{file} is no 64-bit ELF file")
        table, size, count = *struct.unpack_from("<Q", data, 32), *struct.unpack_from("<HH", data, 54)
        headers = [struct.unpack_from("<IIQQQQ", data, table + size * k) for k in range(count)]
        dynamic = next((header for header in headers if header[0] == 2), None)
        if dynamic is None:
            return
        entries = list(struct.iter_unpack("<QQ", data[dynamic[2] : dynamic[2] + dynamic[5] // 16 * 16]))
        strings = next(value for tag, value in entries if tag == 5)
        segment = next(h for h in headers if h[0] == 1 and h[3] <= strings < h[3] + h[5])
        start = strings - segment[3] + segment[2]
        for tag, value in entries:
            if tag == 1:
                yield data[start + value : data.find(b"\0", start + value)].decode()
