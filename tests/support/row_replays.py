"""A rollout of a small policy that was recorded, and its trainer with rows of it injected."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mixture
import torch
from mixture import Policy, Rollout, Trained, train
from replayed import Replay as Made
from replayed import injected

from rltrace.extensions.parity.patching.recorder import rows_provider
from rltrace.extensions.parity.patching.source import options_of, read_table
from rltrace.extensions.parity.patching.tally import ModuleRows, RowAccount, account_of
from rltrace.selectors import parse_selectors
from rltrace.trace.read.reader import open_trace

NOISE = 0.2
"""Added to the trainer's router: it chooses other experts."""


@dataclass
class Generated:
    """What the generator left."""

    path: Path
    rollout: Rollout


@dataclass
class Replayed:
    """The trainer with rows injected."""

    account: RowAccount
    trained: Trained
    path: Path

    def of(self, module: str, op: str = "") -> ModuleRows:
        return next(one for one in self.account.modules if (one.module, one.op) == (module, op))


Replay = Callable[..., Replayed]
"""``replay(inject, weights=False, orders=…, policy=trainer(), a=the rollout's trace)``."""


def trainer(**options: Any) -> Policy:
    """The policy with another router, as training in another precision may make it."""
    policy = mixture.make(**options)
    torch.manual_seed(3)
    with torch.no_grad():
        for layer in policy.layers:
            layer.router.score.weight += NOISE * torch.randn_like(layer.router.score.weight)
    return policy


def rows_block(
    a: str | Path,
    inject: str | tuple[str, ...],
    path: str | Path,
    *,
    weights: bool = False,
    names: str | Path | None = None,
    force: bool = False,
) -> AbstractContextManager[Made]:
    """Record the block's ops into a new trace at ``path``, with the rows of ``a`` that ``inject`` selects."""
    trace = open_trace(a)
    selectors = (inject,) if isinstance(inject, str) else tuple(inject)
    table = read_table(trace, parse_selectors(selectors), selectors, weights=weights)
    options = options_of(trace, str(Path(path).absolute()), selectors, weights=weights, names=names)
    return injected(options, rows_provider(options), lambda replay: account_of(replay, table), force=force)


def replay_rows(generated: Generated, path: Path, inject: Any, policy: Any, orders: Any, *, weights: bool) -> Replayed:
    with rows_block(generated.path, inject, path, weights=weights, force=True) as made:
        trained = train(policy, generated.rollout, [list(order) for order in orders])
    assert open_trace(path).holes == ()
    return Replayed(made.account, trained, path)
