"""Generators that the program makes for itself: ``random.Random`` and ``numpy.random.default_rng``, with their seeds.

Patches ``default_rng`` and ``Random.seed``. The classes of NumPy and torch are C types, which are not patched. NumPy's
that is given no seed seeds itself, with another in every run; its state afterwards is evidence.
"""

import sys
from collections.abc import Callable
from itertools import count
from types import FrameType, ModuleType
from typing import Any, Final

from rltrace.recorder.base.patching import Patches
from rltrace.recorder.core.events import EventForm
from rltrace.recorder.integrations.environments import IntegrationContext, seed_of
from rltrace.recorder.integrations.method_patching import Method, MethodDecorator
from rltrace.recorder.integrations.rng_snapshot import generator_reader
from rltrace.trace.format.events import GENERATOR
from rltrace.trace.format.schema import Kind

MAX_GENERATORS: Final = 4_096
"""Events of this kind in a process; a loader may make a generator for each of its samples."""


class Generators:
    """Patches both."""

    def __init__(self, context: IntegrationContext) -> None:
        self._context = context
        self._forms = {
            name: EventForm(Kind.SEED, GENERATOR, name, ("made", "seed"), ("state",), ("given",))
            for name in ("random.Random", "numpy.random.default_rng")
        }
        self._patches = Patches()
        self._count = count()

    @property
    def of_python(self) -> dict[str, MethodDecorator]:
        return {"seed": self._decorate_seed}

    def watch_numpy(self, module: ModuleType) -> None:
        self._patches.wrap_all([module, sys.modules.get("numpy.random._generator")], "default_rng", self._default_rng)

    def uninstall(self) -> None:
        self._patches.undo_all()

    def _default_rng(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        generator = original(*args, **kwargs)
        seed = args[0] if args else kwargs.get("seed")
        if not hasattr(seed, "bit_generator") and not hasattr(seed, "random_raw"):  # it returns a generator as it is
            self._write("numpy.random.default_rng", seed, generator)
        return generator

    def _decorate_seed(self, original: Method) -> Method:
        def replacement(generator: Any, *args: Any, **kwargs: Any) -> None:
            original(generator, *args, **kwargs)
            seed = args[0] if args else kwargs.get("a")
            if seed is not None:  # as of one that is unpickled, whose state is then set
                self._write("random.Random", seed, generator)

        return replacement

    def _write(self, name: str, seed: Any, generator: Any) -> None:
        try:
            frame = _caller(sys._getframe(2))
            if frame is None or self._context.events.stream() is None or next(self._count) >= MAX_GENERATORS:
                return
            read = generator_reader(generator)
            entropy = getattr(seed, "entropy", None)
            seed = seed if entropy is None else [entropy, *getattr(seed, "spawn_key", ())]
            self._context.events.write(
                self._forms[name],
                evidence=(0, seed_of(seed), 0 if read is None else read()),
                digests=(self._context.digests.digest(seed),),
                frame=frame,
            )
        except Exception as error:
            self._context.events.fail(error)


def _caller(frame: FrameType) -> FrameType | None:
    """The frame that makes a generator; None: it is the standard library's, for the names of temporary files say."""
    inner: FrameType | None = frame
    while inner is not None and inner.f_globals.get("__name__") in ("random", "rltrace.recorder.base.patching"):
        inner = inner.f_back
    library = "" if inner is None else str(inner.f_globals.get("__name__")).partition(".")[0]
    return None if library in sys.stdlib_module_names else inner
