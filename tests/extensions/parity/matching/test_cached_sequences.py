"""Tokens of an engine's flat batches, followed through the slots of its KV cache, as its adapter declares them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from paged_engine import Engine, Sampler
from parity_traces import compared, record, recorded
from whole_number_model import Attention, Norm, Policy, padded, policy, train, train_packed

from rltrace.extensions.parity.adapters.vllm import slots_of
from rltrace.extensions.parity.compare import Compared, compare
from rltrace.extensions.parity.impact.summary import effects_of
from rltrace.extensions.parity.inputs import of_ranks, parse_given, streams_of
from rltrace.extensions.parity.matching.forward_passes import Forward, Slots
from rltrace.extensions.parity.matching.token_grids import token_grids
from rltrace.extensions.parity.model import ParityVerdict, Reason
from rltrace.extensions.parity.token_keys import NO_KEY
from rltrace.trace.format.activation_rows import BEGINS, ModuleCall
from rltrace.trace.read.reader import open_trace

SEQUENCES = [[3, 4, 5, 6, 7, 8], [9, 4, 5, 11, 12], [3, 4, 13, 14, 15, 16, 17], [3, 4, 5, 6, 18]]
PROMPTS = [2, 3, 2, 4]
FED = sum(map(len, SEQUENCES)) - len(SEQUENCES)
"""The last token of each sequence is never fed."""
SAMPLED = sum(map(len, SEQUENCES)) - sum(PROMPTS) + 2
"""Two tokens of the last prompt were sampled in the first sequence, which begins as it does."""


def of_both(path: Path, engine: Engine, trainer: Policy, *, packed: int = 0) -> Compared:
    """The engine's trace against the trainer's, which packs the sequences and ``packed`` tokens of padding."""
    with record(path / "a.zarr"):
        engine.generate(SEQUENCES[:2], PROMPTS[:2])
        engine.generate(SEQUENCES, PROMPTS)
    with record(path / "b.zarr"):
        train_packed(trainer, SEQUENCES, packed) if packed else train(trainer, SEQUENCES)
    return compared(path / "a.zarr", path / "b.zarr")


@pytest.mark.parametrize(
    "how", [{}, {"batch": 3}, {"blocks": 5}, {"prefixes": True}], ids=["whole", "chunked", "preempted", "shared"]
)
def test_every_token_of_an_engine_has_the_key_of_its_sequence(tmp_path: Path, how: dict[str, Any]) -> None:
    """Requests that come and go in one batch, prompts in chunks, sequences that are computed again, and beginnings that
    are not computed at all: every token that was fed is compared in every module, and the warm-up is no sequence.
    """
    engine = Engine(policy(), **how)
    both = of_both(tmp_path, engine, policy())
    parity, gap = both.parity, effects_of(both).gap
    assert (engine.preempted > 0, engine.hits > 0) == ("blocks" in how, "prefixes" in how)
    assert (parity.verdict, parity.a.unknown) == (ParityVerdict.BITWISE, 0)
    assert {module.rows for module in parity.modules} == {FED}
    assert (gap.n, gap.equal) == (SAMPLED, SAMPLED)


@pytest.mark.parametrize(("bent", "rows"), [(0.0, 0), (2**-10, 2)])
def test_an_engine_is_compared_with_itself(tmp_path: Path, bent: float, rows: int) -> None:
    """Tokens that it decoded in one sequence, and that are of the prompt of another."""
    engine = Engine(policy())
    engine.model.layers[0].attention.sums.bent = bent
    parity = of_both(tmp_path, engine, policy()).parity
    (one,) = (one for one in parity.repeated if one.how == "decoded against prefilled")
    module = "PagedPolicy.layers.0.attention.out" if rows else ""
    assert (one.side, one.of, one.rows, one.module) == ("a", 2, rows, module)
    assert all(other.rows == 0 for other in parity.repeated if other is not one)


TURNED = "attention", "what Policy.layers.0.attention.attention is given (query) differs already"


@pytest.mark.parametrize(
    ("twist", "packed", "first"),
    [
        ("", 0, []),
        ("", 5, []),
        ("turn", 0, [TURNED]),
        ("own", 5, [("attention.attention", "")]),
        ("turn own", 0, [TURNED, ("attention.attention", "")]),
        ("turn out", 0, [TURNED, ("attention.out", "addmm in A")]),
    ],
)
def test_what_attention_reads_differs_apart_from_attention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: int, twist: str, first: list[tuple[str, str]]
) -> None:
    """As a rotary embedding does, which is no module: one cause after the other is taken away, until nothing differs.
    A trainer that packs has tokens of padding, which the engine never computes and need not.
    """
    monkeypatch.setattr(Attention, "declares", True)
    trainer = policy(twist=twist, at="layers.0.attention")
    if "out" in twist:  # which differs at the first tokens already, and hides nothing
        trainer.layers[0].attention.out.twist = "operators"  # type: ignore[assignment, union-attr]
    both = of_both(tmp_path, Engine(policy(), batch=3), trainer, packed=packed)
    parity, gap = both.parity, effects_of(both).gap
    assert gap.only_b == 0
    assert parity.verdict is (ParityVerdict.DIFFERS if first else ParityVerdict.BITWISE)
    for one, (name, said) in zip(parity.origins, first, strict=True):
        assert one.path.b == f"Policy.layers.0.{name}"
        assert one.explanation.startswith(said)
    assert parity.b.excused == (packed or len(SEQUENCES))


@pytest.mark.parametrize(
    ("twist", "first"), [("", []), ("round", ["Policy.layers.0.norm"]), ("sum", ["Policy.layers.0"])]
)
def test_a_norm_that_adds_the_residual_is_compared_by_the_sum(tmp_path: Path, twist: str, first: list[str]) -> None:
    """The engine's is given two terms and returns the sum too; the trainer's is given the sum, and may round it, or add
    otherwise: then the ops of both since the last point are those of the sum, in whatever module."""
    trainer = policy()
    for layer in trainer.layers:
        layer.norm = Norm()  # type: ignore[assignment]
    trainer.layers[0].twist = trainer.layers[0].norm.twist = twist  # type: ignore[assignment, union-attr]
    parity = of_both(tmp_path, Engine(trainer, batch=3), trainer).parity
    assert {one.path.b: one.rows for one in parity.modules}["Policy.layers.0.norm"] == FED
    assert parity.verdict is (ParityVerdict.DIFFERS if twist else ParityVerdict.BITWISE)
    assert [one.path.b for one in parity.origins] == first
    if twist == "sum":
        assert parity.origins[0].explanation.endswith("norm is given (x) differs already: add in A, sub in B")


@pytest.mark.parametrize(
    ("at", "twist", "reason"),
    [
        ("layers.0.attention.value", "arguments", Reason.ARGUMENTS),
        ("layers.1.up", "operators", Reason.OPERATOR),
        ("head", "dtype", Reason.DTYPE),
    ],
)
def test_what_differs_is_found_in_an_engines_batches(tmp_path: Path, at: str, twist: str, reason: Reason) -> None:
    parity = of_both(tmp_path, Engine(policy(), batch=3), policy(twist=twist, at=at)).parity
    assert parity.verdict is ParityVerdict.DIFFERS
    if at != "head":  # whose whole numbers bfloat16 holds
        assert [(one.path.b, one.reason) for one in parity.origins] == [(f"Policy.{at}", reason)]


def test_weights_that_the_engine_was_not_given(tmp_path: Path) -> None:
    other = policy()
    with torch.no_grad():
        other.layers[1].up.weight[0, 0] += 1
    parity = of_both(tmp_path, Engine(policy()), other).parity
    assert [(one.path.b, one.reason) for one in parity.origins] == [("Policy.layers.1.up", Reason.WEIGHTS)]


@pytest.mark.parametrize(
    ("values", "planted", "first"),
    [
        ("module=*", False, []),
        ("module=*", True, ["Policy.layers.0.attention.value"]),
        ("module=*Sampler", False, None),
    ],
)
def test_parts_of_tensor_parallel_ranks_are_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: str, planted: bool, first: list[str] | None
) -> None:
    """By their values, whatever the order of the ranks; without values they are not compared, and the report says so.
    What is planted in the second rank's weights is found."""
    monkeypatch.setattr(Attention, "declares", True)
    for rank in (0, 1):
        engine = Engine(policy(), batch=3, rank=(rank, 2))
        if planted and rank == 1:
            with torch.no_grad():
                engine.model.layers[0].attention.value.weight[3, 0] += 1
        with record(tmp_path / f"a{rank}.zarr", rows="module=*", values=values):
            engine.generate(SEQUENCES, PROMPTS)
    recorded(tmp_path / "b.zarr", lambda: train(policy(), SEQUENCES))
    opened = [open_trace(tmp_path / f"{name}.zarr") for name in ("a1", "a0", "b")]
    other, alone, b = (next(streams_of("a", trace, parse_given(str(trace.path), [], "a"))) for trace in opened)
    whole, part = of_ranks("a", [other, alone]), of_ranks("a", [alone])
    assert part.notes
    parity = compare(whole, b).parity
    read = {one.path.b: one.rows for one in parity.modules if "attention" in one.path.b}
    named = {f"Policy.layers.0.attention.{name}" for name in ("value", "attention")}
    assert {name for name in named if read.get(name) == FED} == (set() if first is None else named)
    assert [one.path.b for one in parity.origins] == (first or [])
    assert planted or any("which are not compared" in note for note in parity.notes) is (first is None)


class Scored(Policy):
    """A trainer's model that returns log-probabilities in place of logits."""

    def forward(self, ids: torch.Tensor, *given: Any) -> dict[str, torch.Tensor]:  # type: ignore[override]
        chosen = super().forward(ids, *given).log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
        return {"loss": chosen.sum(), "log_probs": chosen}


@pytest.mark.parametrize("batch", [64, 3], ids=["whole", "chunked"])
def test_log_probabilities_that_the_programs_return(tmp_path: Path, batch: int) -> None:
    """A sampler's, of the last tokens of each batch alone, and a trainer's: each at its token, and equal but for what
    the other order of a sum makes. The last token, which no model is given, has one too.
    """
    trainer = Scored()
    trainer.load_state_dict(policy().state_dict())
    engine = Engine(policy(), batch=batch, sampler=Sampler())
    a = recorded(tmp_path / "a.zarr", lambda: engine.generate(SEQUENCES, PROMPTS))
    b = recorded(tmp_path / "b.zarr", lambda: trainer(*padded(SEQUENCES, left=False))["loss"].backward())
    gap = effects_of(compared(a, b)).gap
    assert (gap.n, gap.largest) == (SAMPLED - 2, pytest.approx(0, abs=1e-5))
    assert "Sampler.raw_logprobs (A)" in gap.source and gap.source.endswith("A sampled at temperature 0.5")


@pytest.mark.parametrize("head", [False, True])
def test_an_engine_whose_model_is_compiled_is_named(tmp_path: Path, head: bool) -> None:
    """Only calls of the whole model are known then, and its output is not what the trainer's returns; or of its head
    too, whose input the program does not pass in.
    """
    rows = ["module=PagedPolicy", *(["module=PagedPolicy.head"] if head else [])]
    engine, trainer = Engine(policy(), sampler=Sampler()), policy(twist="arguments", at="layers.1.up")
    a = recorded(tmp_path / "a.zarr", lambda: engine.generate(SEQUENCES, PROMPTS), rows=rows)
    parity = compared(a, recorded(tmp_path / "b.zarr", lambda: train(trainer, SEQUENCES))).parity
    if not head:
        assert parity.verdict is ParityVerdict.UNDECIDED
        assert parity.why.startswith("PagedPolicy of A calls no modules, as where it is compiled")
        return
    (first,) = parity.origins
    assert (parity.verdict, first.path.b, first.reason) == (ParityVerdict.DIFFERS, "Policy.head", Reason.INPUTS)
    assert first.explanation == "x of Policy.head differs already, and what computes it is not compared"


def forward(ids: list[int], slots: Slots | None) -> Forward:
    call = ModuleCall(0, None, "M.embed", "Embedding", 0, "forward", False, 0, 0, ())
    return Forward(call, (len(ids),), np.array([ids]), None, None, slots)


def test_a_batch_without_facts_leaves_nothing_certain() -> None:
    """It may have filled any slot."""
    begun = forward([5, 6], Slots(np.array([8, 9]), np.array([BEGINS, 8])))
    on = forward([7], Slots(np.array([10]), np.array([9])))
    followed = token_grids([begun, on])[1]
    assert followed.keys[0] != NO_KEY
    assert (followed.sequences.tolist(), followed.places.tolist()) == ([0], [2])
    assert token_grids([begun, forward([1], None), on])[2].keys.tolist() == [NO_KEY]


def test_slots_by_a_table_of_blocks() -> None:
    """Two requests in blocks of 4: the second position 5 of the first, and the first position of the second."""
    table = np.array([[3, 7], [2, 0]])
    assert slots_of(table, 4, np.array([0, 0, 1]), np.array([5, 9, 0])).tolist() == [29, -1, 8]
