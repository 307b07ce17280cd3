"""Recording JAX: from a concrete call of a compiled function to rows.

The *hook* (``hook.py``) sees each such call, with those that JAX's C++ cache serves (``cached_calls.py``). A *cut*
(``loops.py``) takes a compiled function apart at its outermost scan, so that the host can drive it
(``driven_loops.py``); a *log* (``digest_log.py``) holds digests that a program takes itself, of the carry of a loop and
of what it has in memory within a call (``read_calls.py``, ``fusions.py``). ``programs.py`` says what was compiled, and
the *recording* (``recording.py``) writes the rows of one process, with its steps and what is known of its arrays
(``known_arrays.py``); it begins and ends as every ``ProcessRecording``. As in
``rltrace.recorder``, nothing here changes what the program computes, prints or returns. No module of this package
imports torch, and none is imported before the program has imported JAX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rltrace.extension import Extension

if TYPE_CHECKING:
    from rltrace.recorder.base.options import RecordOptions


JAX_ENGINE: Final = "jax-iterations/2"
"""Engine of what this package records: rows are calls of functions that JAX compiled, and iterations of their outermost
scan."""


def _recorders(options: RecordOptions) -> dict[str, str]:
    injects = options.replay and not options.provider
    return {"jax": f"rltrace.extensions.jax.{'arrays:start_injecting' if injects else 'hook:start'}"}


EXTENSION: Final = Extension({}, _recorders, library="rltrace.extensions.jax.log_library")
