"""Rows of a generator put into its trainer, forward and back, across other batches."""

import _thread
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import mixture
import pytest
import torch
from mixture import CHOSEN, EXPERTS, PAD, batch, train, unpadded
from row_replays import Generated, Replay, rows_block, trainer
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode, _push_mode

import rltrace
from rltrace.errors import UsageError
from rltrace.trace.format.activation_rows import Part
from rltrace.trace.read.reader import open_trace

ROUTERS = "op=aten.topk,module=*router*"
ORDERS = [[2, 0], [1]]


def by_token(path: Path, module: str, name: str = "") -> dict[tuple[int, ...], Any]:
    """Rows of a module's output by the tokens up to them, known from the ids that the outermost call was given."""
    process = open_trace(path).processes[0]
    calls = process.activations.calls(0)
    roots = [call for call in calls if call.module == "Policy"]
    so_far: list[list[int]] = []
    found: dict[tuple[int, ...], Any] = {}
    for root in roots:
        named = {tensor.name: process.values.get(tensor.whole) for tensor in root.tensors if tensor.part is Part.INPUT}
        ids, mask = (named[key].numbers for key in ("input_ids", "attention_mask"))  # type: ignore[union-attr]
        tokens = ids.shape[1]
        if tokens == mask.shape[1]:
            so_far = [[] for _ in ids]
        own = next(c for c in calls if c.module == module and root.number <= c.number and c.end_row <= root.end_row)
        tensor = next(t for t in own.tensors if t.part is Part.OUTPUT and t.name == name)
        rows = process.values.get(tensor.whole).numbers.reshape(ids.shape[0], tokens, -1)  # type: ignore[union-attr]
        for i in range(len(ids)):
            for t in range(tokens):
                if mask[i, mask.shape[1] - tokens + t]:
                    so_far[i].append(int(ids[i, t]))
                    found.setdefault(tuple(so_far[i]), rows[i, t])
    return found


def equal_rows(a: dict[tuple[int, ...], Any], b: dict[tuple[int, ...], Any]) -> tuple[int, int]:
    """How many rows both have, and how many of them are equal."""
    shared = [key for key in b if key in a]
    return len(shared), sum(bool((a[key] == b[key]).all()) for key in shared)


def test_what_a_module_gave_in_the_rollout_is_what_it_gives_in_training(generated: Generated, replay: Replay) -> None:
    """Every row that both sides compute is A's, in whichever batch and place, and the last token has no partner."""
    a, module = by_token(generated.path, "Policy.layers.0"), "Policy.layers.0"
    with rltrace.record(generated.path.parent / "plain.zarr", rows="all", values="all", force=True):
        train(trainer(), generated.rollout, ORDERS)
    shared, equal = equal_rows(a, by_token(generated.path.parent / "plain.zarr", module))
    assert (shared, equal) == (21, 0)
    found = replay(f"module={module}")
    assert equal_rows(a, by_token(found.path, module)) == (21, 21)
    rows = found.of(module)
    assert (rows.selected, rows.injected, rows.equal, rows.unmatched, rows.tensors) == (21, 21, 0, 3, 2)
    assert found.account.complete
    assert rows.first_unmatched[0].startswith("token 7 of sequence 0")


def test_the_choice_is_as_in_the_rollout_and_its_weights_are_the_trainers_own(
    generated: Generated, replay: Replay
) -> None:
    """The indices of ``topk`` are A's in A's order; the values are the trainer's own scores of these experts."""
    found = replay(ROUTERS)
    for layer in (0, 1):
        router = f"Policy.layers.{layer}.router"
        a, c = (by_token(path, router, "1") for path in (generated.path, found.path))
        assert equal_rows(a, c) == (21, 21)
        rows = found.of(router, "aten.topk.default")
        assert rows.injected + rows.equal == rows.selected == 21
        assert rows.injected > 0
    router = "Policy.layers.0.router"
    scores = by_token(found.path, f"{router}.score")
    weights, chosen = by_token(found.path, router, "0"), by_token(found.path, router, "1")
    for key, row in scores.items():
        own = torch.from_numpy(row.copy()).softmax(-1)
        assert torch.allclose(own[torch.from_numpy(chosen[key].copy())], torch.from_numpy(weights[key].copy()))


def test_with_weights_what_went_with_the_choice_is_put_in_too(generated: Generated, replay: Replay) -> None:
    """What the experts are mixed with is A's, bit by bit."""
    found = replay(ROUTERS, weights=True)
    router = "Policy.layers.0.router"
    assert equal_rows(by_token(generated.path, router, "0"), by_token(found.path, router, "0")) == (21, 21)
    assert found.of(router, "aten.topk.default").selected == 42


def test_gradients_are_those_of_the_choice_that_was_put_in(generated: Generated, replay: Replay) -> None:
    """The backward pass goes through A's experts, as in a program that looks its experts up and chooses none."""
    found = replay("op=aten.topk,module=*router*", orders=[(2, 0), (1,)])
    chosen = {layer: by_token(found.path, f"Policy.layers.{layer}.router", "1") for layer in (0, 1)}
    policy = trainer()

    def look_up(layer: int) -> Any:
        def forward(hidden: Tensor) -> tuple[Tensor, Tensor]:
            flat = hidden.reshape(-1, mixture.WIDTH)
            scores = policy.layers[layer].router.score(flat).softmax(-1)
            picked = torch.stack([_picked(ids, mask, chosen[layer], scores, i) for i in range(len(flat))])
            return scores.gather(-1, picked), picked

        return forward

    for layer in (0, 1):
        policy.layers[layer].router.forward = look_up(layer)  # type: ignore[method-assign]
    ids = mask = torch.zeros(0)
    logits = []
    for order in ORDERS:
        ids, mask = batch(generated.rollout, order)
        found_logits = policy(ids, mask)["logits"]
        (found_logits.log_softmax(-1).gather(-1, ids[..., None]).squeeze(-1) * mask).sum().backward()
        logits.append(found_logits.detach())
    assert_close(found.trained.logits, logits, rtol=0, atol=0)
    gradients = {name: parameter.grad for name, parameter in policy.named_parameters() if parameter.grad is not None}
    assert_close(found.trained.gradients, gradients, rtol=1e-5, atol=1e-6)


def _picked(ids: Tensor, mask: Tensor, chosen: dict[tuple[int, ...], Any], scores: Tensor, row: int) -> Tensor:
    sequence, token = divmod(row, ids.shape[1])
    if not mask[sequence, token]:
        return scores[row].topk(CHOSEN).indices
    key = tuple(ids[sequence, : token + 1].tolist())
    return torch.from_numpy(chosen[key].copy()).long()


@pytest.mark.parametrize("inject", [ROUTERS, "module=*router"])
def test_what_is_computed_anew_for_the_gradients_has_the_same_rows(replay: Replay, inject: str) -> None:
    """Activation checkpointing gives the same logits and gradients, and counts nothing twice."""
    plain = replay(inject)
    anew = replay(inject, policy=trainer(anew=True))
    assert_close(anew.trained.logits, plain.trained.logits, rtol=0, atol=0)
    assert_close(anew.trained.gradients, plain.trained.gradients, rtol=0, atol=0)
    for a, b in zip(plain.account.modules, anew.account.modules, strict=True):
        assert (a.selected, a.injected, a.equal, a.unmatched) == (b.selected, b.injected, b.equal, b.unmatched)
        assert (a.recomputed, b.recomputed) == (0, a.selected)


def test_what_a_thread_of_autograds_own_computes_anew_has_the_same_rows(
    generated: Generated, replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device, gradients and what is computed anew for them run in a thread that Python knows nothing of, with the
    modes of the one that called ``backward``; one like it is used here.
    """
    plain = replay(ROUTERS)
    backward = torch.Tensor.backward

    def elsewhere(tensor: Tensor) -> None:
        mode, done, raised = _get_current_dispatch_mode(), threading.Lock(), []
        done.acquire()

        def work() -> None:
            try:
                _push_mode(mode)
                backward(tensor)
                _pop_mode()
            except BaseException as error:
                raised.append(error)
            finally:
                done.release()

        _thread.start_new_thread(work, ())
        done.acquire()
        assert not raised, raised

    monkeypatch.setattr(torch.Tensor, "backward", elsewhere)
    found = replay(ROUTERS, policy=trainer(anew=True))
    assert [module.recomputed for module in found.account.modules] == [21, 21]
    # such a thread may sum up in another order
    assert_close(found.trained.gradients, plain.trained.gradients, rtol=1e-5, atol=1e-6)


def test_a_backward_pass_within_a_module_is_no_part_of_it(generated: Generated, replay: Replay) -> None:
    """A learner that is a module itself and computes gradients in its call: what is computed anew is still found."""
    learner = Learner(trainer(anew=True), generated.rollout)
    plain = replay(ROUTERS, orders=[(0, 1)])
    with rows_block(generated.path, ROUTERS, generated.path.parent / "learner.zarr", force=True) as made:
        learner()
    assert made.account.complete
    for own, other in zip(made.account.modules, plain.account.modules, strict=True):
        assert own.recomputed == other.selected
    for name, gradient in plain.trained.gradients.items():
        assert torch.equal(gradient, learner.policy.get_parameter(name).grad), name


class Learner(nn.Module):
    def __init__(self, policy: mixture.Policy, rollout: mixture.Rollout) -> None:
        super().__init__()
        self.policy = policy
        self.rollout = rollout

    def forward(self) -> None:
        train(self.policy, self.rollout, [[0, 1]])


def test_everything_put_in_the_trainer_ends_with_the_generators_logits(generated: Generated, replay: Replay) -> None:
    """All modules at once, those that hand on what they were given included."""
    found = replay("all")
    assert found.account.complete, found.account.lacking
    a, c = (by_token(path, "Policy", "logits") for path in (generated.path, found.path))
    assert equal_rows(a, c) == (21, 21)


def test_a_module_that_hands_on_what_it_was_given_is_not_written_through(replay: Replay) -> None:
    """Its caller's memory stays as it is; that is reported, and nothing counts as injected."""
    policy = trainer()
    with torch.no_grad():
        policy.embed.weight += 1
    found = replay("module=*.keep", policy=policy)
    assert not found.account.complete
    assert "memory that it was given" in found.account.lacking[0][1]


def test_a_trainer_of_other_tokens_is_unresolved(replay: Replay, generated: Generated, tmp_path: Path) -> None:
    """No row has a partner: that is no replay."""
    other = tmp_path / "other.zarr"
    policy = mixture.make()
    ids = torch.full((2, 6), 20)
    with rltrace.record(other, rows="all", values="all"), torch.no_grad():
        policy(ids, torch.ones_like(ids))
    found = replay("module=*router", a=other)
    assert not found.account.complete
    assert all("unmatched in A" in why for _, why in found.account.lacking)


def test_a_row_of_another_form_is_refused_with_its_reason(generated: Generated, tmp_path: Path) -> None:
    """Another dtype, another width: nothing is written, and it is reported."""
    policy = mixture.make().double()
    with rows_block(generated.path, "module=Policy.layers.0", tmp_path / "c.zarr") as made:
        train(policy, generated.rollout, [[0]])
    module, why = made.account.lacking[0]
    assert module.failed == 6
    assert "float64[16] here and float32[16] in A" in why


def test_ids_beyond_what_there_is_to_choose_from_are_refused(
    generated: Generated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A's experts are more than here: its ids would read beyond the scores."""
    monkeypatch.setattr(mixture, "EXPERTS", EXPERTS - 4)
    policy = mixture.make()
    with rows_block(generated.path, ROUTERS, tmp_path / "c.zarr") as made:
        train(policy, generated.rollout, [[0, 1, 2]])
    assert "A chose among more" in made.account.lacking[0][1]


def test_what_a_trace_lacks_is_said_before_anything_runs(tmp_path: Path) -> None:
    """Without rows, token ids, or values: each refused with the command that records them."""
    policy = mixture.make()
    kept: list[tuple[dict[str, Any], str, str]] = [
        ({}, "all", "holds no activation rows"),
        ({"rows": "op=aten.topk"}, "op=aten.topk", "token ids or observations"),
        ({"rows": "module=*"}, "module=Policy.head", "values of 3 of the 3 tensors"),
        ({"rows": "module=*"}, "op=aten.no_such", "finds nothing"),
    ]
    for number, (options, inject, said) in enumerate(kept):
        path = tmp_path / f"{number}.zarr"
        with rltrace.record(path, **options):
            mixture.sample(policy, new=3)
        with pytest.raises(UsageError, match=said) as error, rows_block(path, inject, tmp_path / "c.zarr"):
            pytest.fail(f"{inject} of {options} ran")
        assert "rltrace record --rows" in str(error.value)


def test_the_ids_that_a_router_returns_need_no_values(generated: Generated, tmp_path: Path) -> None:
    """Whole numbers that modules return are kept with their values: routing is replayed from ``--rows`` alone."""
    path = tmp_path / "a.zarr"
    with rltrace.record(path, rows=["module=*", "op=aten.topk"]):
        mixture.sample(mixture.make())
    with rows_block(path, ROUTERS, tmp_path / "c.zarr") as made:
        train(trainer(), generated.rollout, ORDERS)
    assert made.account.complete
    with pytest.raises(UsageError, match="values"), rows_block(path, ROUTERS, tmp_path / "d.zarr", weights=True):
        pytest.fail("it ran")


def test_a_wrapped_trainer_has_the_same_modules(generated: Generated, replay: Replay) -> None:
    """The policy within another module: its path is longer, its place the same."""

    class Wrapped(torch.nn.Module):
        def __init__(self, policy: mixture.Policy) -> None:
            super().__init__()
            self.inner = policy

        def forward(self, *args: Any) -> Any:
            return self.inner(*args)

    found = replay(ROUTERS, policy=Wrapped(trainer()))  # type: ignore[arg-type]
    assert found.account.complete
    assert found.of("Policy.layers.0.router", "aten.topk.default").modules_b == ("Wrapped.inner.layers.0.router",)
    assert found.of("Policy.layers.0.router", "aten.topk.default").selected == 21


def test_modules_of_other_names_are_mapped(generated: Generated, tmp_path: Path) -> None:
    """A trainer of the same model under other names: nothing is injected without a map, and with one it is."""

    class Renamed(mixture.Policy):
        def __init__(self, policy: mixture.Policy) -> None:
            nn.Module.__init__(self)
            self.anew, self.take = False, None
            self.tokens, self.blocks, self.final, self.out = policy.embed, policy.layers, policy.norm, policy.head
            for block in policy.layers:
                block.choose = block.router
                del block.router
                block.router = lambda hidden, block=block: block.choose(hidden)

        embed = property(lambda self: self.tokens)  # type: ignore[assignment]
        layers = property(lambda self: self.blocks)  # type: ignore[assignment]
        norm = property(lambda self: self.final)  # type: ignore[assignment]
        head = property(lambda self: self.out)  # type: ignore[assignment]

    lines = tmp_path / "names.map"
    lines.write_text("Policy.embed = Renamed.tokens\nPolicy.layers.*.router = Renamed.blocks.*.choose\n")
    for names, complete in ((None, False), (lines, True)):
        made = rows_block(generated.path, ROUTERS, tmp_path / "c.zarr", names=names, force=True)
        with made as replayed:
            train(Renamed(trainer()), generated.rollout, ORDERS)
        assert replayed.account.complete is complete
    assert [module.modules_b for module in replayed.account.modules] == [
        ("Renamed.blocks.0.choose",),
        ("Renamed.blocks.1.choose",),
    ]


def test_the_replay_keeps_what_the_generators_recording_kept(generated: Generated, replay: Replay) -> None:
    """Rows and values of the same, so that the two can be compared."""
    process = open_trace(replay(ROUTERS).path).processes[0]
    assert process.activations.request.selectors == ("all",)
    assert process.values.request.selectors == ("all",)


class Single(nn.Module):
    """A router that takes the best expert alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(24, 8)
        self.score = nn.Linear(8, 5)
        self.up = nn.Parameter(torch.randn(5, 8))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.embed(input_ids)
        weight, chosen = self.score(hidden).max(-1, keepdim=bool(len(input_ids) % 2))
        return hidden * weight.view(*input_ids.shape, 1) + self.up[chosen.view(input_ids.shape)]


@pytest.mark.parametrize("batch", [1, 2])
def test_a_choice_of_the_best_alone(tmp_path: Path, batch: int) -> None:
    """``max`` along an axis, with and without that axis kept: A's expert, and the trainer's own score of it."""
    torch.manual_seed(0)
    model, ids = Single(), torch.randint(24, (batch, 6))
    with rltrace.record(tmp_path / "a.zarr", rows="all", values="op=aten.max"), torch.no_grad():
        for end in range(1, 7):
            model(ids[:, end - 1 : end], torch.ones(batch, end))
    model.score.bias.data += 3 * torch.randn(5)
    with rows_block(tmp_path / "a.zarr", "op=aten.max", tmp_path / "c.zarr") as made:
        model(ids, torch.ones_like(ids)).sum().backward()
    assert (made.account.complete, made.account.modules[0].selected) == (True, 6 * batch)
    assert made.account.modules[0].injected > 0
    steps, [(weights, chosen)] = results(tmp_path / "a.zarr"), results(tmp_path / "c.zarr")
    sampled = torch.cat([step[1].view(batch, 1) for step in steps], 1)
    assert torch.equal(chosen.view(batch, 6), sampled)
    scores = model.score(model.embed(ids)).gather(-1, sampled[..., None])
    assert torch.equal(weights.view(batch, 6, 1), scores)
    assert weights.dim() == (3 if batch % 2 else 2)


def results(path: Path) -> list[tuple[Tensor, Tensor]]:
    """What each ``max`` gave: values and indices."""
    process = open_trace(path).processes[0]
    found = []
    for op in process.activations.ops(0).values():
        named = {tensor.name: tensor.whole for tensor in op.tensors if tensor.part is Part.OUTPUT}
        if {"values", "indices"} == set(named):
            pair = [torch.from_numpy(process.values.get(named[name]).numbers.copy()) for name in ("values", "indices")]  # type: ignore[union-attr]
            found.append((pair[0], pair[1]))
    return found


def actor_of_observations() -> Any:
    """A policy whose parts training calls one by one."""
    body, head = nn.Sequential(nn.Linear(3, 8), nn.Tanh()), nn.Linear(8, 2)
    return nn.Sequential(OrderedDict(body=body, head=head))


@pytest.mark.parametrize("whole", [True, False])
def test_a_policy_over_observations(tmp_path: Path, *, whole: bool) -> None:
    """Rows are known by what the policy was given: one at a time in the rollout, shuffled batches in training."""
    observations = torch.randn(6, 3)
    with rltrace.record(tmp_path / "a.zarr", rows="all", values="all"), torch.no_grad():
        actor = actor_of_observations()
        rollout = torch.cat([actor(one) for one in observations.split(1)])
    batches = [observations[[4, 1, 5]], torch.cat([observations[[0, 3]], torch.ones(1, 3)])]
    with rows_block(tmp_path / "a.zarr", "module=Sequential.head", tmp_path / "c.zarr") as made:
        actor = actor_of_observations()
        found = [actor(batch) if whole else actor.head(actor.body(batch)) for batch in batches]
        torch.cat(found).sum().backward()
    [head] = made.account.modules
    assert (head.selected, head.injected, head.unmatched) == (5, 5, 1)
    assert torch.equal(found[0], rollout[[4, 1, 5]])
    assert torch.equal(found[1][:2], rollout[[0, 3]])
    assert head.first_unmatched == ("row 2 of forward pass 1",)


def loop(steps: int) -> list[Tensor]:
    """One program that samples, and trains on that, again and again; its weights at the end."""
    policy = mixture.make()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.05)
    for _ in range(steps):
        rollout = mixture.sample(policy)
        optimizer.zero_grad()
        train(policy, rollout, ORDERS)
        optimizer.step()
    return [parameter.detach().clone() for parameter in policy.parameters()]


def test_steps_of_one_program_have_rows_of_their_own(tmp_path: Path) -> None:
    """The same prompts are computed in every step, with other weights: each gets the rollout's rows of that step."""
    with rltrace.record(tmp_path / "a.zarr", rows="all", values="all"):
        weights = loop(3)
    with rows_block(tmp_path / "a.zarr", ROUTERS, tmp_path / "c.zarr") as made:
        again = loop(3)
    assert made.account.complete
    assert_close(again, weights, rtol=0, atol=0)
    for module in made.account.modules:
        assert (module.injected, module.several, module.unmatched) == (0, 0, 9)


def test_padding_is_left_alone(generated: Generated, replay: Replay) -> None:
    """What is computed at padding has no key: it is the trainer's own, and counted nowhere."""
    found = replay("module=Policy.layers.0", orders=[(2, 0, 1)])
    lengths = [len(each) for each in unpadded(generated.rollout)]
    rows = found.of("Policy.layers.0")
    assert rows.selected + rows.unmatched == sum(lengths)
    assert PAD in batch(generated.rollout, [2, 0, 1])[0]


def test_a_head_that_is_given_some_of_the_tokens_is_refused(replay: Replay) -> None:
    """Which ones they are does not follow from their number: nothing is injected, and it is reported."""
    found = replay("module=Policy.head", policy=trainer(take=lambda hidden: hidden[:, -3:]), orders=[(2, 0, 1)])
    [(module, why)] = found.account.lacking
    assert (module.injected, module.equal) == (0, 0)
    assert "unknown which rows of [3, 3, 24] belong to which of [3, 9] tokens" in why
