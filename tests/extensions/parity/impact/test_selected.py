"""Log-probabilities that the programs computed themselves: which number is whose, by shapes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from language_model import PAD, Spoken, generate, logits, policies, train
from numpy.typing import NDArray
from parity_traces import compared, recorded
from torch import nn

from rltrace.errors import UsageError
from rltrace.extensions.parity.compare import compare
from rltrace.extensions.parity.impact.chosen_logprobs import (
    ElementPlacement,
    element_tokens,
    gap_of_selected,
    parse_both,
)
from rltrace.extensions.parity.impact.logprobs import Gap, Policy
from rltrace.extensions.parity.impact.token_order import Tokens
from rltrace.extensions.parity.token_keys import NONE
from rltrace.selectors import parse_selectors
from rltrace.trace.format.activation_rows import Part


def fed(*batches: list[list[int]], cached: bool = True) -> Tokens:
    """The tokens of a side that was fed these, call by call."""
    side = Spoken("b")
    for at, batch in enumerate(batches):
        side.feed(batch, cached=cached and at > 0)
    tokens: Tokens = policies(side, side)[1].tokens
    return tokens


def ids(lying: ElementPlacement | None, tokens: Tokens) -> list[int]:
    return [int(tokens.ids[i]) if i != NONE else PAD for i in lying.tokens]


def test_as_many_numbers_as_tokens_are_theirs() -> None:
    """Two axes, flat, or with axes of length 1."""
    tokens = fed([[1, 2, 3], [4, 5, 6]])
    base = tokens.index[0].reshape(2, 3)
    for shape in ((2, 3), (6,), (2, 3, 1), (1, 2, 3)):
        assert ids(element_tokens(shape, base, tokens), tokens) == [1, 2, 3, 4, 5, 6]


def test_fewer_are_those_of_the_last_tokens_that_another_follows() -> None:
    """A trainer cuts off the last logits, as nothing follows, and the prompt's."""
    tokens = fed([[1, 2, 3, 4], [5, 6, 7, 8]])
    base = tokens.index[0].reshape(2, 4)
    assert ids(element_tokens((2, 3), base, tokens), tokens) == [1, 2, 3, 5, 6, 7]
    assert ids(element_tokens((2, 2), base, tokens), tokens) == [2, 3, 6, 7]
    assert ids(element_tokens((2, 1), base, tokens), tokens) == [3, 7]


def test_one_for_each_sequence_of_a_generator_is_of_its_last_token() -> None:
    """It samples after the prompt's last token, wherever that stands."""
    tokens = fed([[1, 2, 3], [4, 5, 6]], [[7], [8]])
    assert ids(element_tokens((2,), tokens.index[0].reshape(2, 3), tokens), tokens) == [3, 6]
    assert ids(element_tokens((2, 1), tokens.index[0].reshape(2, 3), tokens), tokens) == [3, 6]
    assert ids(element_tokens((2,), tokens.index[1].reshape(2, 1), tokens), tokens) == [7, 8]


def test_more_than_a_call_was_fed_are_of_the_tokens_fed_last_and_that_is_said() -> None:
    """All log-probabilities of a generation, stacked when it is over: from the prompt's last token to the last fed."""
    tokens = fed([[1, 2, 3], [4, 5, 6]], [[7], [8]], [[9], [10]])
    found = element_tokens((2, 3), tokens.index[2].reshape(2, 1), tokens)
    assert ids(found, tokens) == [3, 7, 9, 6, 8, 10]
    assert found.assumed == "[2, 3] taken as those of the last 3 tokens"


def test_a_shape_that_fits_nothing_is_nobodys() -> None:
    """Neither tokens nor sequences: nothing is guessed."""
    tokens = fed([[1, 2, 3], [4, 5, 6]])
    for shape in ((5,), (3, 2), (2, 3, 13), (2, 7), ()):
        assert element_tokens(shape, tokens.index[0].reshape(2, 3), tokens) is None, shape


def test_packed_ones_are_of_the_tokens_that_do_not_pad() -> None:
    """A loss mask takes padding out before the numbers are computed."""
    side = Spoken("b")
    side.feed([[1, 2, 3, 4], [5, 6, PAD, PAD]], [[1, 1, 1, 1], [1, 1, 0, 0]])
    tokens = policies(side, side)[1].tokens
    base = tokens.index[0].reshape(2, 4)
    assert ids(element_tokens((6,), base, tokens), tokens) == [1, 2, 3, 4, 5, 6]
    assert ids(element_tokens((4,), base, tokens), tokens) == [1, 2, 3, 5]


def test_selectors_for_both_sides_or_one_for_each() -> None:
    """``::`` parts them; a third is an error."""
    sub, gather = parse_selectors(["op=sub"]), parse_selectors(["op=gather"])
    assert parse_both("op=sub", "--logprobs") == (sub, sub)
    assert parse_both("op=sub::op=gather", "--logprobs") == (sub, gather)
    with pytest.raises(UsageError, match="A's and B's with :: between them"):
        parse_both("op=a::op=b::op=c", "--logprobs")


def log_probability(prompt: list[int], taken: list[int], shift: float = 0.0) -> Any:
    """A module that gives the log-probability of the token that follows, for one sequence; 0 where none does."""
    sequence = [*prompt, *taken]

    def give(prefix: tuple[int, ...]) -> NDArray[np.float32]:
        if list(prefix) != sequence[: len(prefix)] or len(prefix) == len(sequence):
            return np.zeros(1, np.float32)
        wide = logits(prefix).astype(np.float64)
        value = wide[sequence[len(prefix)]] - np.log(np.exp(wide).sum())
        return np.array([value + shift * (len(prefix) == 4)], np.float32)

    return give


def selected(shift: float, text: str = "module=*.logprob", keep: bool = True) -> Gap | str:
    a, b = Spoken("a", keep=keep), Spoken("b")
    generate(a, [[3, 4]], [[1, 2, 5]], extra=[("logprob", "", log_probability([3, 4], [1, 2, 5]))])
    train(b, [[3, 4]], [[1, 2, 5]], extra=[("logprob", "", log_probability([3, 4], [1, 2, 5], shift))])
    side_a, side_b = policies(a, b)
    return gap_of_selected(side_a, side_b, *parse_both(text, "--logprobs"))


def test_what_both_programs_computed_is_compared_token_by_token() -> None:
    """The token that was sampled last is one of them, though the generator was never fed it; the prompt's are none."""
    same, other = selected(0.0), selected(-0.25)
    assert (same.n, same.equal) == (3, 3)
    assert (other.n, other.equal) == (3, 2)
    assert [(t.place, t.token) for t in other.furthest] == [("token 4 of sequence 0", 5)]
    assert other.largest == pytest.approx(0.25, abs=1e-6)
    assert "Model.logprob" in same.source


def test_what_cannot_be_compared_is_named_with_what_to_do() -> None:
    """Nothing found, no values, or numbers that no log-probability can be."""
    assert "finds nothing in A" in str(selected(0.0, "module=nothing"))
    assert "record it with --values as well" in str(selected(0.0, keep=False))
    assert "no log-probability" in str(selected(1e6))


def acted(side: Spoken, observations: list[list[float]], shift: float = 0.0) -> None:
    """One call of a policy that is no language model, and the log-probability of an action for each observation."""
    given = np.array(observations, np.float32)
    values = -np.abs(given.sum(axis=1, keepdims=True)) + np.float32(shift)
    tensors = side.kept(Part.INPUT, "obs", given), side.kept(Part.OUTPUT, "", values)
    side.call(len(side.calls), None, "Actor", "Actor", side.row, side.row + 3, tensors)
    side.row += 3


def test_observations_identify_themselves() -> None:
    """A policy that is no language model: the number is of the row that was handed in, in whatever batch it stood."""
    a, b = Spoken("a"), Spoken("b")
    for observation in ([1.0, 2.0], [3.0, 4.0], [5.0, 6.0]):
        acted(a, [observation])
    acted(b, [[5.0, 6.0], [1.0, 2.0]])
    acted(b, [[3.0, 4.0], [7.0, 8.0]], shift=0.5)
    found = compare(a.call_range, b.call_range)
    gap = gap_of_selected(Policy(found.a, found.ranks), Policy(found.b), *parse_both("module=Actor", "--logprobs"))
    assert (gap.n, gap.equal, gap.largest) == (3, 2, 0.5)
    assert (gap.only_a, gap.only_b) == (0, 1)
    assert [(t.place, t.token, t.a, t.b) for t in gap.furthest] == [("row 0 of call 1", None, -7.0, -6.5)]


def epochs() -> None:
    """A rollout of six observations, one at a time, two epochs over them in shuffled batches, and another rollout."""
    torch.manual_seed(0)
    actor = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(actor.parameters(), lr=0.5)
    observations, actions = torch.randn(6, 3), torch.tensor([[0], [1], [2], [3], [0], [1]])
    order = torch.tensor([4, 1, 0, 5, 3, 2])

    def log_probability(rows: torch.Tensor) -> torch.Tensor:
        return actor(observations[rows]).log_softmax(-1).gather(-1, actions[rows]).squeeze(-1)

    for _ in range(2):
        with torch.no_grad():
            for at in range(6):
                log_probability(torch.tensor([at]))
        for _ in range(2):
            log_probability(order).sum().backward()
            optimizer.step()


def test_what_was_computed_with_other_weights_does_not_count(tmp_path: Path) -> None:
    """A second epoch computes the same observations again after a step of the optimizer: no partner is in A, and its
    numbers are not taken for those of the first, whose calls are compared. Neither are those of a later rollout."""
    found = compared(recorded(tmp_path / "t.zarr", epochs, values="op=gather"))
    gap = gap_of_selected(Policy(found.a, found.ranks), Policy(found.b), *parse_both("op=gather", "--logprobs"))
    assert (gap.n, gap.only_a, gap.only_b) == (12, 0, 0)
    assert gap.largest < 1e-6
