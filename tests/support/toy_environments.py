"""Small environments of Gymnasium whose every number is known beforehand, and what a trace holds of them."""

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from recorded import Recorded, Row

from rltrace.trace.format.schema import Kind

EVENTS = (Kind.ENVIRONMENT_RESET, Kind.ENVIRONMENT_STEP)


class Walk(gymnasium.Env[Any, Any]):
    """A walk along a line: its place is the observation; ``noise`` from its own generator."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 5, noise: float = 0.0) -> None:
        self.length = length
        self.noise = noise
        self.place = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.noise * float(self.np_random.normal()) if self.noise else 0.0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += 1.0 if action else -1.0
        if self.noise:
            self.place += self.noise * float(self.np_random.normal())
        return self._seen(), self.place / 10, abs(self.place) >= self.length, False, {"time": id(self)}

    def _seen(self) -> Any:
        return np.array([self.place], np.float32)


class Doubled(gymnasium.Wrapper[Any, Any, Any, Any]):
    """What is observed, twice as large."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, *rest = self.env.step(action)
        return (2 * observation, *rest)  # type: ignore[return-value]


@dataclass(frozen=True)
class Event:
    """An event of a trace, its cells by name."""

    kind: Kind
    what: str
    owner: str
    cells: dict[str, Any]
    row: Row
    texts: dict[str, str]

    @property
    def compared(self) -> dict[str, Any]:
        """What is compared, without evidence."""
        named = [cell for cell in self.row.scalars[1:] if isinstance(cell, list)]  # type: ignore[index]
        names = [name[:-1] for name, letter in named if letter in "dif"]
        return {name: self.cells[name] for name in names}


def events(recorded: Recorded, kinds: tuple[Kind, ...] = EVENTS) -> list[Event]:
    """The events of a stream, in order."""
    found = []
    for row in recorded.rows:
        if row.kind not in kinds:
            continue
        raw = recorded.raw
        digests = raw.digests[raw.digest_offsets[row.index] : raw.digest_offsets[row.index + 1]].tolist()
        what, *words = row.scalars  # type: ignore[misc]
        names = [cell for cell in words if isinstance(cell, list)]
        texts = next((cell["texts"] for cell in words if isinstance(cell, dict)), {})
        named = sum(letter in "ne" for _, letter in names)
        del digests[named : 0 if raw.evidence is None else int(raw.evidence[row.index])]  # values of small fields
        cells = {"i": iter(row.integers), "f": iter(row.floats)}
        own = iter(digests)
        values = {name[:-1]: next(cells.get(letter, own)) for name, letter in names}
        found.append(Event(row.kind, what, row.module, values, row, texts))
    return found
