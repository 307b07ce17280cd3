"""The op that differs, called again on the spot, and what that says of the cause.

Owns the words. The calling is for ``rltrace.reexecute``; nothing of the program is touched by it: memory is fresh, and
the generator that the op draws from is put back.
"""

from __future__ import annotations

from collections.abc import Mapping

from rltrace.diff.judging.kernels import kernel_differences, tells_what_ran
from rltrace.diff.judging.settings import Settings, settings_differences, settings_text
from rltrace.diff.model import Cause, InputsMatch, Pair
from rltrace.errors import UsageError
from rltrace.follow.finding import Again
from rltrace.follow.judging import Judged
from rltrace.record.digests import TensorDigests
from rltrace.record.layouts import Layouts
from rltrace.record.tables import Tables
from rltrace.reexecute.live import Call, live_case
from rltrace.reexecute.rerun import SECONDS, TIMES, Outcome, in_words, repeat
from rltrace.trace.evidence import kernel_text

Evidence = Mapping[str, object]


def call_again(call: Call, results_a: Outcome, results_here: Outcome) -> tuple[Again | None, str]:
    """What comes out; or None and why it was not called."""
    digests = TensorDigests(Layouts(Tables()))  # of its own: the program's tables are for what the program did
    try:
        gave = repeat(live_case(call), TIMES, lambda tensor: f"{digests.of(tensor):016x}", SECONDS)
    except (UsageError, RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return None, str(error).splitlines()[0]
    counts = gave.get(results_a, 0), gave.get(results_here, 0)
    return Again(sum(gave.values()), len(gave) == 1, tuple(gave.items()), *counts), ""


def cause_in_words(
    judged: Judged,
    op: str,
    kernels: tuple[Evidence, Evidence],
    settings: tuple[Settings, Settings],
    again: Again | None,
) -> tuple[Cause, InputsMatch, str]:
    """The cause, with what the kernels and the calls on the spot say of it."""
    cause, because = judged.cause, judged.because
    if cause is Cause.COMPUTATION:
        differences = kernel_differences(*kernels) if all(kernels) else []
        under = settings_text(op, kernels, settings_differences(*settings))
        if differences or under:
            another = f"another kernel ran ({', '.join(differences)})" if differences else ""
            cause, because = Cause.KERNEL, f"{because}: {'; '.join(filter(None, [another, under]))}"
        elif all(map(tells_what_ran, kernels)):
            cause = Cause.SAME_KERNEL
            because = f"{because} under the same kernel evidence ({kernel_text(kernels[1])})"
    if again is not None:
        told = in_words(dict(again.gave))
        whose = f"A's result came {again.of_a:,} times" if again.of_a else "none gave A's result"
        because = f"{because}; re-executed on the same inputs, {told}, and {whose}"
    return cause, judged.inputs, because


def paired(a: Outcome, b: Outcome) -> tuple[Pair[str], ...]:
    """Results of both sides, side by side."""
    count = max(len(a), len(b))
    return tuple(Pair(a[k] if k < len(a) else None, b[k] if k < len(b) else None) for k in range(count))
