"""Two programs compared by row, from recordings: what parts is found, and what agrees is not said to part."""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from children import in_thread
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parity_traces import compared, record, recorded
from torch import nn
from whole_number_model import LAYERS, WIDTH, Dense, Policy, generate, padded, policy, train

from rltrace.errors import UsageError
from rltrace.extensions.parity.capture.call_facts import Called, Point, sources
from rltrace.extensions.parity.compare import ParityOptions, compare
from rltrace.extensions.parity.inputs import open_ranges, parse_given
from rltrace.extensions.parity.model import Parity, ParityVerdict, Reason, RowsBy
from rltrace.trace.format.activation_rows import Part

SEQUENCES = [[3, 4, 5, 6, 7, 8], [9, 4, 5, 11, 12], [3, 4, 13, 14, 15, 16, 17]]
PROMPTS = [2, 3, 2]
FED = 17
"""Tokens that the generator is fed: all but the last of the longest sequence; the others' ends go on with padding."""


def of_one_trace(
    path: Path,
    model: nn.Module,
    sequences: list[list[int]] = SEQUENCES,
    *,
    sampled: int = len(SEQUENCES),
    last: int | None = None,
) -> Parity:
    """The model's generator, of so many sequences, and its trainer, one after the other."""
    with record(path / "t.zarr"):
        generate(model, SEQUENCES[:sampled], PROMPTS[:sampled], last=last)
        train(model, sequences)
    return compared(path / "t.zarr").parity


def of_observations(path: Path, model: nn.Module, rollout: Iterable[Any], batch: Any) -> Path:
    """The trace of a model that is called with each observation, and trained on a batch."""
    with record(path / "t.zarr"):
        with torch.no_grad():
            for observed in rollout:
                model(*observed)
        model(*batch).sum().backward()
    return path / "t.zarr"


def test_programs_that_agree_are_bitwise_equal(tmp_path: Path) -> None:
    """A generator with a cache, padded on the left, and a trainer of whole sequences in another order: every token that
    both computed is compared in every module, and the last of each sequence, that was never fed, needs no partner.
    """
    parity = of_one_trace(tmp_path, policy(), SEQUENCES[::-1])
    assert (parity.verdict, parity.origins, parity.holes) == (ParityVerdict.BITWISE, (), ())
    assert {module.rows for module in parity.modules} == {FED}
    compared_modules = {module.path.a for module in parity.modules}
    assert compared_modules >= {"Policy", "Policy.place", "Policy.layers.1.attention.out"}
    assert (parity.b.missing, parity.b.excused) == (1, 1)
    assert (parity.a.missing, parity.a.excused) == (2, 2)
    assert parity.repeated == ()


@pytest.mark.parametrize(
    ("at", "twist", "reason", "words"),
    [
        ("layers.1.up", "operators", Reason.OPERATOR, "addmm in A, mm, mul, add in B"),
        ("layers.0.down", "arguments", Reason.ARGUMENTS, "alpha=1.0009765625"),
        ("layers.1.down", "dtype", Reason.DTYPE, "in float32 against bfloat16"),
        ("layers.0.attention.value", "shape", Reason.OPERATOR, "add"),
        ("layers.1.attention", "own", Reason.OPERATOR, "abs, mul, add in B"),
    ],
)
def test_the_module_that_parts_is_named(tmp_path: Path, at: str, twist: str, reason: Reason, words: str) -> None:
    """The first whose inputs agree and outputs do not; not those that hand it on, nor those around it."""
    parity = of_one_trace(tmp_path, policy(twist=twist, at=at))
    assert parity.verdict is ParityVerdict.DIFFERS
    assert [origin.path.b for origin in parity.origins] == [f"Policy.{at}"]
    first = parity.origins[0]
    assert first.reason is reason
    assert words in first.explanation
    assert first.own is (at == "layers.1.attention")
    before = next(module for module in parity.modules if module.path.a == f"Policy.{at}")
    assert first.of == before.rows  # whose inputs agree
    assert before.distance.absolute
    assert "whole_number_model.py" in str((first.op.b or first.several[0].b).site)  # type: ignore[union-attr]


def test_the_same_numbers_in_another_dtype_are_not_bitwise_equal(tmp_path: Path) -> None:
    """A head in bfloat16 on one side, which holds whole numbers below 256 exactly."""
    parity = of_one_trace(tmp_path, policy(twist="dtype", at="head"))
    head = next(module for module in parity.modules if module.path.a == "Policy.head")
    assert (head.dtype.a, head.dtype.b) == ("float32", "bfloat16")
    assert (head.rows, head.differing) == (FED, 0)
    assert parity.verdict is ParityVerdict.DIFFERS
    assert parity.why == "2 modules have different dtypes; the numbers are the same"


@pytest.mark.parametrize("on", ["both sides", "one side"])
def test_dropout_that_was_left_on_is_named(tmp_path: Path, on: str) -> None:
    """Random numbers are the cause, whether one side draws them or both."""
    with record(tmp_path / "t.zarr"):
        model = policy()
        model.keep = nn.Dropout(0.5)  # type: ignore[assignment]
        model.train(on == "both sides")
        generate(model, SEQUENCES, PROMPTS)
        train(model.train(), SEQUENCES)
    parity = compared(tmp_path / "t.zarr").parity
    assert (parity.first.path.a, parity.first.reason) == ("Policy.keep", Reason.RNG)
    assert "draws random numbers" in parity.first.explanation


def test_two_programs_with_other_names(tmp_path: Path) -> None:
    """The trainer holds the policy, another object of the same weights, in a trace of its own."""

    class Trainer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.policy = policy()

        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            return self.policy(*given)

    a = recorded(tmp_path / "a.zarr", lambda: generate(policy(), SEQUENCES, PROMPTS))
    b = recorded(tmp_path / "b.zarr", lambda: train(Trainer(), SEQUENCES))
    parity = compared(a, b).parity
    assert parity.verdict is ParityVerdict.BITWISE
    assert [(pair.a, pair.b) for pair in parity.renamed] == [("Policy", "Trainer.policy")]
    assert parity.only_b == ("Trainer",)


def test_other_weights_are_the_cause(tmp_path: Path) -> None:
    """One number of one layer is another, as where a generator was not given the last update."""
    a = recorded(tmp_path / "a.zarr", lambda: generate(policy(), SEQUENCES, PROMPTS))
    with record(tmp_path / "b.zarr"):
        model = policy()
        with torch.no_grad():
            model.layers[1].up.weight[0, 0] += 1
        train(model, SEQUENCES)
    parity = compared(a, tmp_path / "b.zarr").parity
    assert (parity.first.path.a, parity.first.reason) == ("Policy.layers.1.up", Reason.WEIGHTS)


def test_what_the_programs_hand_in_is_compared_too(tmp_path: Path) -> None:
    """Positions that begin elsewhere: no module parts by itself, and the inputs are named."""
    with record(tmp_path / "t.zarr"):
        model = policy()
        generate(model, SEQUENCES, PROMPTS)
        ids = torch.tensor([SEQUENCES[0]])
        model(ids, torch.ones_like(ids), torch.arange(ids.shape[1])[None] * 2).sum().backward()
    parity = compared(tmp_path / "t.zarr").parity
    assert parity.verdict is ParityVerdict.DIFFERS
    assert (parity.first.reason, parity.first.path.b) == (Reason.INPUTS, "Policy")
    assert "positions" in parity.first.explanation


def fused_points(call: Called) -> list[Point]:
    """What an adapter of these programs declares: ``both`` is two modules of the checkpoint."""
    layer = getattr(call.root, "layer", None)
    if not isinstance(layer, Fused) or call.module is not layer.both:
        return []
    names = "layer.gate", "layer.up"
    return [(Part.OUTPUT, name, part) for name, part in zip(names, call.result.chunk(2, -1), strict=True)]


def of_one_sequence(folder: Path, engine: nn.Module, trainer: nn.Module) -> Parity:
    """A sequence sampled by one and learned by the other."""
    ids = torch.tensor(SEQUENCES[0])[None]
    with record(folder / "a.zarr"), torch.no_grad():
        engine(ids)
    b = recorded(folder / "b.zarr", lambda: trainer(ids).sum().backward())
    return compared(folder / "a.zarr", b).parity


def test_a_fused_module_is_compared_by_its_parts(tmp_path: Path) -> None:
    """One that is equal, and one of which the trainer has other weights."""
    engine, trainer = fused_and_split()
    with torch.no_grad():
        trainer.layer.up.weight[0, 0] += 1  # type: ignore[union-attr]
    sources.add(points=fused_points)
    parity = of_one_sequence(tmp_path, engine, trainer)
    rows = {one.path.a: (one.rows, one.differing > 0) for one in parity.modules}
    assert (rows["Layered.layer.gate"], rows["Layered.layer.up"]) == ((6, False), (6, True))
    assert [(one.path.b, one.reason) for one in parity.origins] == [("Layered.layer.up", Reason.UNKNOWN)]
    assert "fused" in parity.origins[0].explanation


def test_what_a_part_explains_is_no_finding_of_the_whole(tmp_path: Path) -> None:
    """Where both programs have it fused, its output is that of the part that differs."""
    engine, _ = fused_and_split()
    trainer = deepcopy(engine)
    with torch.no_grad():
        trainer.layer.both.weight[-1, 0] += 1  # type: ignore[union-attr]
    sources.add(points=fused_points)
    parity = of_one_sequence(tmp_path, engine, trainer)
    assert [one.path.b for one in parity.origins] == ["Layered.layer.up"]


class Uncounted(Policy):
    """Counts positions itself, from the padding on."""

    def forward(self, ids: torch.Tensor, attention_mask: torch.Tensor, *_: Any) -> torch.Tensor:  # type: ignore[override]
        return super().forward(ids, attention_mask, torch.arange(ids.shape[1]).expand_as(ids))


def test_other_positions_come_before_what_modules_make_of_them(tmp_path: Path) -> None:
    """A trainer that is handed no positions counts them from the padding on: attention on rows of the longest sequence,
    whose positions are the same, differs as well, and is not the first cause.
    """
    first, rest = policy(), Uncounted()
    rest.load_state_dict(first.state_dict())
    rest.layers[0].attention.twist = "own"
    a = recorded(tmp_path / "a.zarr", lambda: generate(first, SEQUENCES, PROMPTS))
    b = recorded(tmp_path / "b.zarr", lambda: rest(*padded(SEQUENCES, left=True)).sum().backward())
    given, other = compared(a, b).parity.origins
    assert (given.path.b, other.path.b) == ("Uncounted.place", "Uncounted.layers.0.attention")
    assert (given.reason, given.op.b and given.op.b.op) == (Reason.INPUTS, "aten.embedding.default")
    assert other.reason is not Reason.SHAPE


def test_undecided_names_no_module(tmp_path: Path) -> None:
    """Other positions of which the model makes nothing, and a sequence that the generator never had."""
    with record(tmp_path / "t.zarr"):
        model = policy()
        with torch.no_grad():
            model.place.weight.zero_()
        generate(model, SEQUENCES[:2], PROMPTS[:2])
        ids, mask, positions = padded(SEQUENCES, left=False)
        model(ids, mask, positions * 2).sum().backward()
    parity = compared(tmp_path / "t.zarr").parity
    assert (parity.verdict, parity.origins) == (ParityVerdict.UNDECIDED, ())


def test_sequences_that_see_each_other_are_no_matter_of_shape(tmp_path: Path) -> None:
    """A trainer packs its sequences into one row and forgets to keep them apart: their tokens are found all the same,
    and that they lie far apart is not put down to the order of sums.
    """
    with record(tmp_path / "t.zarr"):
        model = policy()
        generate(model, SEQUENCES, PROMPTS)
        ids = torch.cat([torch.tensor(row) for row in SEQUENCES])[None]
        positions = torch.cat([torch.arange(len(row)) for row in SEQUENCES])[None]
        model(ids, torch.ones_like(ids), positions).sum().backward()
    parity = compared(tmp_path / "t.zarr").parity
    assert {module.rows for module in parity.modules} == {FED}
    assert (parity.first.path.a, parity.first.reason) == ("Policy.layers.0.attention", Reason.BESIDE)
    assert parity.first.row == "token 0 of sequence 1"


def test_sequences_whose_beginning_was_not_recorded_are_counted(tmp_path: Path) -> None:
    """Recording begins while the generator decodes: what it decodes is not known, and nothing is guessed."""
    model = policy()
    past: dict[nn.Module, torch.Tensor] = {}
    with torch.no_grad():
        model(torch.tensor([[3, 4]]), torch.ones(1, 2), torch.tensor([[0, 1]]), past)
    with record(tmp_path / "t.zarr"):
        with torch.no_grad():
            model(torch.tensor([[5]]), torch.ones(1, 3), torch.tensor([[2]]), past)
        generate(model, SEQUENCES, PROMPTS)
        train(model, SEQUENCES)
    parity = compared(tmp_path / "t.zarr").parity
    assert (parity.verdict, parity.a.unknown) == (ParityVerdict.BITWISE, 1)


class Experts(nn.Module):
    """Each expert is handed the tokens that are its own, gathered into one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.body = policy()
        self.body.head = Dense(WIDTH, WIDTH)
        self.experts = nn.ModuleList(Dense(WIDTH, WIDTH) for _ in range(2))

    def forward(self, *given: Any) -> torch.Tensor:
        hidden = self.body(*given).reshape(-1, WIDTH)
        mine = hidden.sum(-1).remainder(2) == 0
        out = torch.zeros_like(hidden)
        for expert, own in zip(self.experts, (mine, ~mine), strict=True):
            out[own] = expert(hidden[own])
        return out


def test_what_a_router_hands_to_an_expert_is_known_by_its_content(tmp_path: Path) -> None:
    """Another number of tokens in each call, in no shape that shows whose they are: all of them are found."""
    with record(tmp_path / "t.zarr"):
        model = Experts()
        generate(model, SEQUENCES, PROMPTS)
        model.experts[1].twist = "operators"
        train(model, SEQUENCES)
    parity = compared(tmp_path / "t.zarr").parity
    rows = [module.rows for module in parity.modules if str(module.path.a).startswith("Experts.experts.")]
    assert sum(rows) == FED
    assert [origin.path.a for origin in parity.origins] == ["Experts.experts.1"]


class Sorted(nn.Module):
    """One expert that is handed every token, in an order of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.expert = policy(), Dense(WIDTH, WIDTH)
        self.body.head = Dense(WIDTH, WIDTH)

    def forward(self, *given: Any) -> torch.Tensor:
        hidden = self.body(*given).reshape(-1, WIDTH)
        out = torch.empty_like(hidden)
        order = hidden.sum(-1).argsort(stable=True)
        out[order] = self.expert(hidden[order])
        return out


def test_as_many_rows_as_tokens_are_not_taken_for_them_in_order(tmp_path: Path) -> None:
    """The shape would allow it; the content says that they are in another order, on each side in its own."""
    parity = of_one_trace(tmp_path, Sorted(), SEQUENCES[::-1])
    expert = next(module for module in parity.modules if module.path.a == "Sorted.expert")
    assert (parity.verdict, expert.rows > 0) == (ParityVerdict.BITWISE, True)


def test_a_reference_model_is_nobodys_generator(tmp_path: Path) -> None:
    """Same class, other weights, the same sequences: it has no partner, and takes none of the generator's rows. That
    the rest is equal says nothing about it, until the selection of A leaves it out.
    """
    with record(tmp_path / "t.zarr"):
        model, reference = policy(), policy(seed=1)
        with torch.no_grad():
            reference(*padded(SEQUENCES, left=False))
        generate(model, SEQUENCES, PROMPTS)
        train(model, SEQUENCES)
    path = tmp_path / "t.zarr"
    parity = compared(path).parity
    assert (parity.verdict, parity.repeated) == (ParityVerdict.UNDECIDED, ())
    assert "Policy#2 of A computed tokens too" in parity.why
    assert all(path.startswith("Policy#2") for path in parity.only_a)
    assert parity.a.rows == FED + 2  # and padding, fed after a sequence had ended
    trained = recorded(tmp_path / "b.zarr", lambda: train(policy(), SEQUENCES))
    chosen = parse_given(str(path), ["module=Policy,step=0", "module=Policy.*"], "a")
    parity = compare(*open_ranges(chosen, parse_given(str(trained), [], "b"))).parity
    assert (parity.verdict, parity.only_a) == (ParityVerdict.BITWISE, ())


class Engine(Policy):
    """The generator's own model."""


def test_a_is_the_model_that_samples(tmp_path: Path) -> None:
    """The trainer scores the sequences without gradient, which equals what it computes with it; the model that sampled
    them has other weights, and it is the one to compare.
    """
    with record(tmp_path / "t.zarr"):
        model, engine = policy(), Engine()
        engine.load_state_dict(model.state_dict())
        with torch.no_grad():
            engine.head.bias.add_(1)
        generate(engine, SEQUENCES, PROMPTS)
        with torch.no_grad():
            model(*padded(SEQUENCES, left=False))
        train(model, SEQUENCES)
    parity = compared(tmp_path / "t.zarr").parity
    assert parity.verdict is ParityVerdict.DIFFERS
    [head] = parity.origins
    assert (head.path.a, head.path.b, head.reason) == ("Engine.head", "Policy.head", Reason.WEIGHTS)


class Fused(nn.Module):
    """A layer as an engine has it: one projection, and its residual beside its output."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.act, self.down = Dense(WIDTH, 2 * WIDTH), Gated(), Dense(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.down(self.act(self.both(x))), x


class Gated(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, -1)
        return torch.relu(gate) * up


class Split(nn.Module):
    """The same as a trainer has it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (Dense(WIDTH, WIDTH) for _ in range(3))
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x)) + x


class Layered(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed, self.layer, self.head = nn.Embedding(20, WIDTH), layer, Dense(WIDTH, 20)
        with torch.no_grad():
            self.embed.weight.copy_(self.embed.weight.round())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        made = self.layer(self.embed(ids))
        return self.head(sum(made) if isinstance(made, tuple) else made)


def fused_and_split() -> tuple[Layered, Layered]:
    """Both programs' models, of the same weights."""
    engine, trainer = Layered(Fused()), Layered(Split())
    own, other = engine.layer, trainer.layer
    with torch.no_grad():
        for name in ("weight", "bias"):
            getattr(own.both, name).copy_(torch.cat([getattr(other.gate, name), getattr(other.up, name)]))
            getattr(other.down, name).copy_(getattr(own.down, name))
            getattr(trainer.head, name).copy_(getattr(engine.head, name))
        trainer.embed.weight.copy_(engine.embed.weight)
    return engine, trainer


def test_modules_of_another_meaning_are_not_held_against_each_other(tmp_path: Path) -> None:
    """An activation that is given two halves and multiplies them, a layer that hands its residual on: of the same name
    and width, and of other numbers, though both programs compute the same.
    """
    parity = of_one_sequence(tmp_path, *fused_and_split())
    assert (parity.verdict, parity.origins) == (ParityVerdict.BITWISE, ())
    assert {one.path.a for one in parity.modules if not one.rows} == {"Layered.layer", "Layered.layer.act"}
    why = {one.path.a: [tensor.why for tensor in one.uncompared if tensor.part == "output"] for one in parity.modules}
    assert "which is which is not known" in why["Layered.layer"][0]
    assert "no input of the module is compared" in why["Layered.layer.act"][0]


def test_rows_that_a_never_computed_leave_it_undecided(tmp_path: Path) -> None:
    """The trainer has a sequence that the generator has not: all else is equal, and that is not enough."""
    parity = of_one_trace(tmp_path, policy(), sampled=2)
    assert parity.verdict is ParityVerdict.UNDECIDED
    assert "A never computed 5 of the rows of B" in parity.why  # its first two tokens begin another sequence as well
    assert all(module.differing == 0 for module in parity.modules)


def test_calls_of_other_steps_have_other_weights(tmp_path: Path) -> None:
    """What was called after an optimizer's step is not compared with what was called before."""
    with record(tmp_path / "t.zarr"):
        model = policy()
        optimizer = torch.optim.SGD(model.parameters(), 1.0)
        generate(model, SEQUENCES, PROMPTS)
        train(model, SEQUENCES)
        optimizer.step()
        train(model, SEQUENCES)
    parity = compared(tmp_path / "t.zarr").parity
    assert parity.verdict is ParityVerdict.BITWISE
    assert any("1 outermost calls of B, of step 1, are left out" in note for note in parity.notes)


def test_a_side_that_disagrees_with_itself(tmp_path: Path) -> None:
    """Gradient accumulation computes a sequence a second time, and it comes out otherwise."""
    with record(tmp_path / "t.zarr"):
        model = policy(twist="operators", at="layers.0.up")
        generate(model, SEQUENCES, PROMPTS)
        for twist in ("", "operators"):
            model.layers[0].up.twist = twist
            train(model, SEQUENCES)
    parity = compared(tmp_path / "t.zarr").parity
    assert parity.verdict is ParityVerdict.BITWISE  # the first of B with the first of A
    assert [(one.side, one.how, one.module) for one in parity.repeated] == [("b", "again", "Policy.layers.0.up")]


def test_logits_of_the_last_token_alone(tmp_path: Path) -> None:
    """The generator's head sees one position of the prompt; whose it is, its content shows: nothing is assumed."""
    parity = of_one_trace(tmp_path, policy(), last=1)
    assert parity.verdict is ParityVerdict.BITWISE
    head = next(module for module in parity.modules if module.path.a == "Policy.head")
    assert head.rows == FED - sum(PROMPTS) + len(PROMPTS)
    assert parity.notes == ()


class Scores(nn.Module):
    """A policy of observations."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
        with torch.no_grad():
            for weight in self.parameters():
                weight.copy_(weight.mul(8).round())

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(observations)))


def test_rows_without_tokens_are_known_by_what_was_handed_in(tmp_path: Path) -> None:
    """Observations, met one by one, and then in a shuffled batch that has one more."""
    observations = torch.arange(24).reshape(8, 3).float()
    path = of_observations(tmp_path, Scores(), ([one] for one in observations[:7].split(1)), [observations.flip(0)])
    parity = compared(path).parity
    assert (parity.rows_by, parity.verdict) == (RowsBy.INPUTS, ParityVerdict.UNDECIDED)
    assert {module.rows for module in parity.modules} == {7}
    assert "A never computed 1 of the rows of B" in parity.why
    by_order = compared(path, asked=ParityOptions(RowsBy.ORDER)).parity
    assert by_order.verdict is ParityVerdict.DIFFERS  # it is another one


class RotaryEmbedding(nn.Module):
    """Named like an embedding, and looks nothing up."""

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        return x * position_ids[..., None]


class Embedded(Scores):
    """A model that is given embedded tokens, and where they stand."""

    def __init__(self) -> None:
        super().__init__()
        self.rotary = RotaryEmbedding()

    def forward(self, observations: torch.Tensor, position_ids: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(observations) + self.rotary(observations, position_ids)[..., :2]


def test_positions_are_no_token_ids(tmp_path: Path) -> None:
    """A model that is given embedded tokens looks none up: the positions that all its sequences share are not taken for
    their tokens, which would make rows of one sequence rows of another."""
    embedded, positions = torch.arange(24).reshape(2, 4, 3).float(), torch.arange(4)[None]
    rollout = ((sequence, positions) for sequence in embedded.split(1))
    parity = compared(of_observations(tmp_path, Embedded(), rollout, (embedded.flip(0), positions))).parity
    assert (parity.rows_by, parity.verdict) == (RowsBy.INPUTS, ParityVerdict.BITWISE)
    assert next(module for module in parity.modules if module.path.a == "Embedded.head").rows == 8


def test_a_part_called_for_another_row_is_no_part_of_the_pass_before(tmp_path: Path) -> None:
    """After its rollout the generator asks the body alone about one more observation, which the trainer never sees:
    that is no second result for the last one."""
    observations = torch.arange(24).reshape(8, 3).float()
    with record(tmp_path / "t.zarr"):
        model = Scores()
        with torch.no_grad():
            for one in observations[:7]:
                model(one[None])
            model.body(observations[7:])
        model(observations[:7].flip(0)).sum().backward()
    parity = compared(tmp_path / "t.zarr").parity
    assert (parity.rows_by, parity.verdict) == (RowsBy.INPUTS, ParityVerdict.BITWISE)
    assert parity.repeated == ()


class Timed(Scores):
    """Is given a time first, which many rows share."""

    def forward(self, time: torch.Tensor, observations: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(observations) + time


def test_rows_are_known_by_the_input_that_differs_most(tmp_path: Path) -> None:
    observations, time = torch.arange(24).reshape(8, 3).float(), torch.arange(8).remainder(2)[:, None].float()
    rollout = zip(time.split(1), observations.split(1), strict=True)
    parity = compared(of_observations(tmp_path, Timed(), rollout, (time.flip(0), observations.flip(0)))).parity
    assert (parity.rows_by, parity.verdict) == (RowsBy.INPUTS, ParityVerdict.BITWISE)


def test_rows_in_a_declared_order(tmp_path: Path) -> None:
    """What is handed in is drawn anew on each side, so only its order identifies it."""
    observations = torch.arange(4.0).repeat_interleave(2)[:, None].expand(8, 3) + 0.0
    path = of_observations(tmp_path, Scores(), ([pair] for pair in observations.split(2)), [observations])
    parity = compared(path, asked=ParityOptions(RowsBy.ORDER)).parity
    assert (parity.rows_by, parity.verdict) == (RowsBy.ORDER, ParityVerdict.BITWISE)


def test_rows_that_cannot_be_identified_are_an_error(tmp_path: Path) -> None:
    path = of_observations(tmp_path, Scores(), [[torch.zeros(2, 3)]], [torch.ones(8, 3)])
    with pytest.raises(UsageError, match="--rows-by order"):
        compared(path)


def test_streams_that_could_both_be_meant_are_named(tmp_path: Path) -> None:
    """Two threads train: which of them B is has to be said."""
    with record(tmp_path / "t.zarr"):
        model = policy()
        generate(model, SEQUENCES, PROMPTS)
        for name in ("one", "two"):
            in_thread(name, lambda: train(model, SEQUENCES))
    path = tmp_path / "t.zarr"
    with pytest.raises(UsageError, match=r"B could be any of the streams .*thread:one, .*thread:two"):
        compared(path)
    given = parse_given(str(path), [], "a"), parse_given(f"{path}:*thread:two", [], "b")
    assert compare(*open_ranges(*given)).parity.verdict is ParityVerdict.BITWISE


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_sequences_in_any_batches(tmp_path: Path, data: st.DataObject) -> None:
    """Random sequences, some of which begin alike, in the trainer's own batches and order: equal where nothing was
    changed, and the changed module where one was.
    """
    tokens = st.integers(1, 19)
    sequences = data.draw(st.lists(st.lists(tokens, min_size=3, max_size=7), min_size=1, max_size=4))
    prompts = [data.draw(st.integers(1, len(row) - 1)) for row in sequences]
    order = data.draw(st.permutations(range(len(sequences))))
    cut = data.draw(st.integers(0, len(sequences)))
    at = data.draw(
        st.sampled_from(["", "head", *(f"layers.{k}.{name}" for k in range(LAYERS) for name in ("up", "down"))])
    )
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    with record(folder):
        model = policy(data.draw(st.integers(0, 99)), "operators" if at else "", at)
        generate(model, sequences, prompts)
        for part in (order[:cut], order[cut:]):
            if part:
                train(model, [sequences[k] for k in part])
    parity = compared(folder).parity
    if parity.verdict is not ParityVerdict.DIFFERS:
        assert parity.verdict is ParityVerdict.BITWISE
        assert all(module.rows for module in parity.modules)
    else:
        assert [origin.path.b for origin in parity.origins] == [f"Policy.{at}"]
    assert at == "" or parity.verdict is ParityVerdict.DIFFERS or all(m.differing == 0 for m in parity.modules)


def test_token_ids_whose_values_are_not_there(tmp_path: Path) -> None:
    """Calls are known, their ids are not: that is said, and not taken for other tokens."""
    path = recorded(tmp_path / "t.zarr", lambda: (generate(policy(), SEQUENCES, PROMPTS), train(policy(), SEQUENCES)))
    a, b = open_ranges(parse_given(str(path), [], "a"), parse_given(str(path), [], "b"))
    with pytest.raises(UsageError, match="values of B's token ids were not recorded"):
        compare(a, replace(b, find=lambda _digest: None))
