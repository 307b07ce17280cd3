"""Log-probabilities of taken tokens, found from the logits of two programs whose calls were built in memory."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from language_model import PAD, VOCABULARY, Logits, Spoken, generate, logits, policies, train
from numpy.typing import NDArray

from rltrace.extensions.parity.compare import compare
from rltrace.extensions.parity.impact.logprobs import Gap, gap_of_logits
from rltrace.extensions.parity.impact.summary import effects_of

PROMPTS = [[3, 4], [5, 6, 7], [5, 6, 7]]
TAKEN = [[1, 2, 3, 4], [1, 8], [1, 9, 9]]


def shifted(prefix: tuple[int, ...]) -> NDArray[np.float32]:
    """After (5, 6, 7, 1) the logit of token 8 lies 0.5 higher."""
    found = logits(prefix)
    if prefix == (5, 6, 7, 1):
        found[8] += np.float32(0.5)
    return found


def exact(speaks: object, prefix: tuple[int, ...], token: int) -> float:
    wide = speaks(prefix).astype(np.float64)  # type: ignore[operator]
    return float(wide[token] - np.log(np.exp(wide).sum()))


def gap_between(a: Spoken, b: Spoken) -> Gap:
    found = gap_of_logits(*policies(a, b))
    assert isinstance(found, Gap), found
    return found


def sampled_and_trained(of_a: Logits = logits, of_b: Logits = logits, *, keep: bool = True) -> tuple[Spoken, Spoken]:
    """A generator and a trainer of the same sequences; ``keep``: the generator's values."""
    a, b = Spoken("a", of_a, keep=keep), Spoken("b", of_b)
    generate(a, PROMPTS, TAKEN)
    train(b, PROMPTS, TAKEN)
    return a, b


def test_programs_that_compute_the_same_have_no_gap() -> None:
    """A generator with a cache, padded on the left, against whole sequences padded on the right: every taken token
    once, the one that was sampled last and never fed among them."""
    gap = gap_between(*sampled_and_trained())
    assert (gap.n, gap.equal, gap.largest) == (9, 9, 0.0)
    assert (gap.only_a, gap.only_b) == (1, 0)  # padding, fed after a sequence had ended
    assert "softmax" in gap.source


@pytest.mark.parametrize(("other", "dtype", "equal"), [(-26.0, "f2", 9), (-8.0, "f2", 0), (-26.0, "f4", 0)])
def test_what_float32_does_not_distinguish_is_equal(other: float, dtype: str, equal: int) -> None:
    """As the programs compute them: logits of 16 bits may differ by so little. Of others, more is known."""

    def rare(logit: float) -> Logits:
        return lambda prefix: np.append(logits(prefix)[:-1], np.float32(logit)).astype(dtype)

    gap = gap_between(*sampled_and_trained(rare(-25.0), rare(other)))
    assert (gap.n, gap.equal, gap.largest == 0) == (9, equal, equal == 9)


def test_the_token_that_differs_is_named_with_both_values() -> None:
    """Where it stands in the trainer's batch, its id, and both log-probabilities as they are."""
    gap = gap_between(*sampled_and_trained(of_b=shifted))
    assert (gap.n, gap.equal) == (9, 7)  # two sequences pass through that prefix
    first = gap.furthest[0]
    assert (first.place, first.token) == ("token 4 of sequence 1", 8)
    assert first.a == pytest.approx(exact(logits, (5, 6, 7, 1), 8), abs=1e-12)
    assert first.b == pytest.approx(exact(shifted, (5, 6, 7, 1), 8), abs=1e-12)


def test_tokens_that_were_given_do_not_count() -> None:
    """A prompt whose logits both sides have was not sampled: its tokens are in no mean."""
    a, b = Spoken("a"), Spoken("b")
    a.feed([[3, 4, 5]])  # all logits, not those of the last token alone
    a.feed([[1]], cached=True)
    b.feed([[3, 4, 5, 1, 2]])
    gap = gap_between(a, b)
    assert [gap.n, gap.only_b] == [2, 0]


def test_two_whole_sequences_are_compared_at_every_token() -> None:
    """Where no side samples, a reference model against a policy, say, every token that follows another counts."""
    a, b = Spoken("a"), Spoken("b")
    train(a, PROMPTS, TAKEN)
    train(b, PROMPTS, TAKEN)
    assert gap_between(a, b).n == sum(map(len, PROMPTS)) + sum(map(len, TAKEN)) - len(PROMPTS)


def test_a_trainer_that_leaves_out_a_sequence_is_named() -> None:
    """Rows that the other side lacks are counted, not taken for agreement."""
    a, b = Spoken("a"), Spoken("b")
    generate(a, PROMPTS, TAKEN)
    train(b, PROMPTS[:1], TAKEN[:1])
    gap = gap_between(a, b)
    assert gap.n == 4
    assert gap.only_a > 0
    c = Spoken("a")
    generate(c, PROMPTS[:1], TAKEN[:1])
    d = Spoken("b")
    train(d, PROMPTS, TAKEN)
    other = gap_between(c, d)
    assert (other.n, other.only_b) == (4, 9)  # of sequences that A never had, prompts are not known as such


def test_without_values_it_says_what_to_record() -> None:
    """No number is made up; the module whose values are needed is named."""
    why = gap_of_logits(*policies(*sampled_and_trained(keep=False)))
    assert why == "the values of A's logits were not recorded: record it with --values 'module=Model' as well"


def test_without_token_ids_it_says_so() -> None:
    """A side without what identifies tokens has no log-probabilities of them."""
    b = Spoken("b")
    train(b, PROMPTS, TAKEN)
    why = gap_of_logits(*policies(Spoken("a"), b))
    assert why == "no token ids of A are known; name its log-probabilities with --logprobs"


def test_a_reference_model_beside_the_policy_is_not_taken_for_it() -> None:
    """It computed the same tokens before: its logits are of another model, which B has no partner of."""

    def other(prefix: tuple[int, ...]) -> NDArray[np.float32]:
        return logits((1, *prefix))

    a, b = Spoken("a", other, "Reference"), Spoken("b")
    train(a, PROMPTS, TAKEN)
    a.speaks, a.name = logits, "Model"
    generate(a, PROMPTS, TAKEN)
    train(b, PROMPTS, TAKEN)
    found = effects_of(compare(a.call_range, b.call_range)).gap
    assert (found.n, found.equal) == (9, 9)


tokens = st.integers(0, VOCABULARY - 2)
prompted = st.tuples(st.lists(tokens, min_size=1, max_size=4), st.lists(tokens, min_size=1, max_size=5))


@given(st.lists(prompted, min_size=1, max_size=5), st.integers(1, 3), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_every_taken_token_has_its_own_log_probability(
    sequences: list[tuple[list[int], list[int]]], batches: int, random: object
) -> None:
    """However prompts, lengths, groups and the trainer's batches fall: each side's value is that of its own logits at
    that token, whatever stands at the same place elsewhere."""

    def noisy(prefix: tuple[int, ...]) -> NDArray[np.float32]:
        return logits(prefix) + np.float32(1e-3) * logits((9, *prefix))

    prompts, taken = [p for p, _ in sequences], [t for _, t in sequences]
    a, b = Spoken("a"), Spoken("b", noisy)
    generate(a, prompts, taken)
    assume(_takes(sequences))
    order = list(range(len(sequences)))
    random.shuffle(order)  # type: ignore[attr-defined]
    size = -(-len(order) // batches)
    for start in range(0, len(order), size):
        batch = order[start : start + size]
        train(b, [prompts[i] for i in batch], [taken[i] for i in batch])
    gap = gap_between(a, b)
    expected = sorted(
        (exact(logits, prefix, token), exact(noisy, prefix, token))
        for prompt, after in sequences
        for prefix, token in ((tuple(prompt + after[:i]), after[i]) for i in range(len(after)))
    )
    given_too = _given_elsewhere(sequences)
    assert gap.n + given_too == len(expected)
    if not given_too:
        apart = np.array([abs(x - y) for x, y in expected])
        assert gap.mean == pytest.approx(apart.mean(), rel=1e-9)
        assert gap.largest == pytest.approx(apart.max(), rel=1e-9)


def _takes(sequences: list[tuple[list[int], list[int]]]) -> bool:
    """Whether the generator is fed anything that stands in no prompt: else nothing shows that it sampled at all."""
    prompts = {tuple(prompt[: i + 1]) for prompt, _ in sequences for i in range(1, len(prompt))}
    steps = max(len(after) for _, after in sequences) - 1
    return any(
        tuple([*prompt, *after, *[PAD] * steps][: len(prompt) + step + 1]) not in prompts
        for prompt, after in sequences
        for step in range(steps)
    )


def _given_elsewhere(sequences: list[tuple[list[int], list[int]]]) -> int:
    """Taken tokens that stand, after the same tokens, in another sequence's prompt: which they are is not known."""
    prompts = {tuple(prompt[: i + 1]) for prompt, _ in sequences for i in range(1, len(prompt))}
    return sum(tuple(prompt + after[: i + 1]) in prompts for prompt, after in sequences for i in range(len(after)))
