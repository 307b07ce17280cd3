"""The steps table: who made an attempt, how often before, skipped or not, after how many backward passes."""

from typing import Any

import pytest
import torch
from recorded import Record, digest_of
from torch import nn
from torch.amp import GradScaler
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import rltrace
from rltrace.digest import digest_pages
from rltrace.portable_keys import portable_key
from rltrace.trace.format.schema import Phase, Step, StepFlag


def parameter(value: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.full((3,), value))


def test_two_optimizers_of_different_cadence(record: Record) -> None:
    """Each has a number of its own and a count of its own; steps are numbered in order of ending."""
    actor, critic = parameter(), parameter()
    with record.block() as got:
        slow, fast = torch.optim.SGD([actor], lr=0.1), torch.optim.Adam([critic], lr=0.1)
        for i in range(4):
            (critic * 2).sum().backward()
            fast.step()
            if i % 2:
                (actor * 3).sum().backward()
                slow.step()
    assert got.optimizers == [
        ("Adam#0", 0, 0),
        ("Adam#0", 1, 0),
        ("SGD#1", 0, 0),
        ("Adam#0", 2, 0),
        ("Adam#0", 3, 0),
        ("SGD#1", 1, 0),
    ]
    assert got.column(Step.STEP) == list(range(6))
    assert got.column(Step.STREAM) == [0] * 6


def test_an_optimizer_that_died_leaves_its_number_to_no_other(record: Record) -> None:
    """A program that makes a new optimizer for each task: what the garbage collector does shows nowhere."""
    p = parameter()

    def program() -> None:
        for _ in range(3):
            optimizer = torch.optim.SGD([p], lr=0.1)
            optimizer.step()
            optimizer.step()
            del optimizer

    numbers = [name for name, _, _ in record(program).optimizers]
    assert numbers == ["SGD#0", "SGD#0", "SGD#1", "SGD#1", "SGD#2", "SGD#2"]


def test_whose_parameters_an_optimizer_has(record: Record) -> None:
    """The innermost module that holds all of them, for people; what an optimizer is known by does not depend on it."""
    alpha = parameter()
    with record.block() as got:
        agent = nn.ModuleDict({"actor": nn.Linear(2, 1), "critic": nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))})
        agent["critic"](agent["actor"].weight).sum().backward()
        for held in (agent["critic"].parameters(), agent["critic"][1].parameters(), agent.parameters(), [alpha]):
            torch.optim.SGD(held, lr=0.1).step()
    owners = [entry["owner"] for entry in got.table("optimizers")]
    assert owners == ["ModuleDict.critic", "ModuleDict.critic.1", "ModuleDict", ""]
    keys = got.process.tables["optimizers"].keys
    assert [int(key) for key in keys] == [portable_key("optimizers", {"ordinal": n, "class": "SGD"}) for n in range(4)]


def test_rows_know_their_step(record: Record) -> None:
    """An attempt's ops belong to the step that it ends; what comes after, to the next."""
    p = parameter()
    with record.block() as got:
        optimizer = torch.optim.SGD([p], lr=0.1, foreach=False)
        for _ in range(3):
            p.grad = torch.ones(3)
            optimizer.step()
        torch.ones(1).sin()
    ends = got.column(Step.END_ROW)
    assert [row.step for row in got.named("add_")] == [0, 1, 2]
    assert got.one("sin").step == 3
    for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        assert {row.step for row in got.rows[start:end]} == {number}
    assert all(got.rows[end - 1].phase is Phase.OPTIMIZER for end in ends)


def test_accumulated_backward_passes_are_counted(record: Record) -> None:
    """``backward``, ``autograd.grad`` and ``torch.autograd.backward``; each step starts from none."""
    p = parameter()
    with record.block() as got:
        optimizer = torch.optim.SGD([p], lr=0.1)
        for passes in (3, 1, 0, 2):
            for _ in range(passes):
                (p * 2).sum().backward()
            optimizer.step()
        torch.autograd.grad((p * 2).sum(), p)
        torch.autograd.backward((p * 2).sum())
        optimizer.step()
    assert got.column(Step.BACKWARDS) == [3, 1, 0, 2, 2]


@pytest.mark.parametrize(("kind", "options"), [(torch.optim.SGD, {}), (torch.optim.Adam, {"fused": True})])
def test_a_step_that_is_skipped_counts_as_an_attempt(
    record: Record, kind: type[torch.optim.Optimizer], options: dict[str, bool]
) -> None:
    """Overflow on a CPU: the scaler skips the optimizer's own step, or hands a fused one ``found_inf``."""
    p = parameter()
    with record.block() as got:
        optimizer = kind([p], lr=0.1, **options)
        scaler = GradScaler("cpu", init_scale=2.0)
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale((p * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    name = f"{kind.__name__}#0"
    assert got.optimizers == [(name, 0, 0), (name, 1, 1), (name, 2, 0)]
    parameters = got.column(Step.PARAMETERS)
    assert parameters[0] == parameters[1] != parameters[2]


def test_a_closure_is_part_of_the_attempt(record: Record) -> None:
    """LBFGS evaluates its closure many times; one attempt, as many backward passes."""
    p = parameter(5.0)
    calls: list[int] = []
    with record.block() as got:
        optimizer = torch.optim.LBFGS([p], lr=0.5, max_iter=4)

        def closure() -> float:
            calls.append(1)
            optimizer.zero_grad()
            loss = (p**2).sum()
            loss.backward()
            return loss.item()

        optimizer.step(closure)
        optimizer.step(closure)
    assert got.optimizers == [("LBFGS#0", 0, 0), ("LBFGS#0", 1, 0)]
    assert sum(got.column(Step.BACKWARDS)) == len(calls) > 4
    assert {row.phase for row in got.named("pow")} <= {Phase.OPTIMIZER, Phase.BACKWARD}


def test_steps_without_an_optimizer(record: Record) -> None:
    """``rltrace.step()`` ends a step; it is an optimizer of its own name."""
    with record.block() as got:
        for i in range(3):
            torch.ones(1).mul_(i)
            rltrace.step()
    assert got.optimizers == [("ManualSteps#0", i, 0) for i in range(3)]
    assert [row.step for row in got.named("mul_")] == [0, 1, 2]


def test_step_and_phase_do_nothing_unrecorded() -> None:
    """They may stay in a program."""
    rltrace.step()
    with rltrace.phase("rollout"):
        pass
    with pytest.raises(ValueError, match="not a phase"):
        rltrace.phase("backward")


def test_digests_of_a_step_are_of_what_it_used_and_made(record: Record) -> None:
    """Gradients as they were before, parameters as they are after, in the optimizer's order."""
    p, q = parameter(1.0), parameter(2.0)
    q.grad = torch.ones(3)
    with record.block() as got:
        torch.optim.SGD([p, q], lr=0.1).step()
    (step,) = got.steps
    assert step[Step.PARAMETERS] == digest_pages([digest_of(p), digest_of(q)], 0)
    assert step[Step.GRADIENTS] == digest_pages([0, digest_of(torch.ones(3))], 0)
    assert step[Step.FLAGS] == StepFlag.RECORDED | StepFlag.DIGESTED


def test_phases_nest_and_end_by_exceptions(record: Record) -> None:
    """What was said before holds again. Backward and optimizer are phases by themselves."""
    p = parameter()
    with record.block() as got:
        with rltrace.phase("rollout"):
            (p.exp() * 2).sum().backward()
            torch.optim.SGD([p], lr=0.1, foreach=False).step()
            with pytest.raises(KeyError), rltrace.phase("evaluation"):
                torch.ones(1).sin()
                raise KeyError
            torch.ones(1).cos()
        torch.ones(1).tan()
    names = [got.one(name).phase.name for name in ("exp", "add_", "sin", "cos", "tan")]
    assert names == ["ROLLOUT", "OPTIMIZER", "EVALUATION", "ROLLOUT", "OTHER"]
    assert "BACKWARD" in {row.phase.name for row in got.named("mul")}


def test_an_optimizer_that_raises_is_no_attempt(record: Record) -> None:
    """Its closure failed: no step ended; later rows have their own phase and stack, later steps their own count."""
    p = parameter()
    with record.block() as got:
        optimizer = torch.optim.SGD([p], lr=0.1, foreach=False)

        def closure() -> float:
            torch.ones(1).sin()
            raise KeyError("mine")

        for _ in range(3):
            with pytest.raises(KeyError, match="mine"):
                optimizer.step(closure)
            torch.ones(1).cos()
        p.grad = torch.ones(3)
        optimizer.step()
        torch.ones(1).tan()
    assert got.optimizers == [("SGD#0", 0, 0)]
    assert {row.phase for row in got.named("sin")} == {Phase.OPTIMIZER}
    assert {row.phase for row in got.named("cos")} == {Phase.OTHER}
    assert {row.line for row in got.named("cos")} == {"torch.ones(1).cos()"}
    assert len(got.named("cos")[0].stack) == len(got.one("tan").stack)
    assert got.one("tan").phase is Phase.OTHER


def test_an_optimizer_inside_of_backward(record: Record) -> None:
    """A step as soon as a gradient is there, in the engine's own hook."""
    p = parameter()
    with record.block() as got:
        optimizer = torch.optim.SGD([p], lr=0.1, foreach=False)

        def now(tensor: torch.Tensor) -> None:
            optimizer.step()
            optimizer.zero_grad()

        p.register_post_accumulate_grad_hook(now)
        for _ in range(2):
            (p * 2).sum().backward()
        torch.ones(1).tan()
    assert got.optimizers == [("SGD#0", 0, 0), ("SGD#0", 1, 0)]
    assert got.column(Step.BACKWARDS) == [1, 1]
    assert got.one("tan").phase is Phase.OTHER


def test_sparse_and_missing_gradients_are_digested(record: Record) -> None:
    """An embedding with a sparse gradient; a parameter that had none."""
    embedding = nn.Embedding(5, 3, sparse=True)
    unused = parameter()
    with record.block() as got:
        optimizer = torch.optim.SparseAdam(embedding.parameters())
        other = torch.optim.SGD([unused], lr=0.1)
        for index in (1, 2):
            optimizer.zero_grad()
            embedding(torch.tensor([index])).sum().backward()
            optimizer.step()
            other.step()
    gradients = got.column(Step.GRADIENTS)
    assert gradients[0] != gradients[2]
    assert gradients[1] == gradients[3]


def test_an_optimizer_with_attributes_of_its_own_is_no_trouble(record: Record) -> None:
    """What torch calls ``found_inf`` may be anything in a program's own optimizer; so may its state."""

    class Mine(torch.optim.Optimizer):
        found_inf = "never"

        def step(self, closure: Any = None) -> None:
            p.grad = None

    p = parameter()
    with record.block(steps=(1, 2)) as got:
        optimizer = Mine([p], {})
        optimizer.state[p] = {"b": [1], 3: torch.ones(1), "a": object()}
        p.grad = torch.ones(3)
        optimizer.step()
        optimizer.step()
    assert got.optimizers == [("Mine#0", 0, 0), ("Mine#0", 1, 0)]


def test_what_an_optimizer_began_with(record: Record) -> None:
    """The parameters before its first attempt, as after the attempt before it, and the tensors of its state then."""
    p = parameter()
    with record.block() as got:
        optimizer = torch.optim.Adam([p], lr=0.1)
        for _ in range(2):
            p.grad = torch.ones(3)
            optimizer.step()
        resumed = torch.optim.Adam([p], lr=0.1)
        resumed.load_state_dict(optimizer.state_dict())
        p.grad = torch.ones(3)
        resumed.step()
    first, resumed = got.process.optimizer_starts[0], got.process.optimizer_starts[1]
    assert (first.state, first.kept) == ((), ("exp_avg", "exp_avg_sq", "step"))
    assert resumed.state == resumed.kept == first.kept
    assert resumed.parameters == got.column(Step.PARAMETERS)[1]
    assert first.parameters not in got.column(Step.PARAMETERS)


def test_an_attempt_that_torch_makes_for_an_optimizer_to_have_a_state(record: Record) -> None:
    """It is none of the program: what is resumed begins with the state that was loaded, at the step after."""
    model = nn.Linear(3, 1)

    def train(optimizer: torch.optim.Optimizer) -> None:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    with record.block() as got:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        scheduled = torch.optim.Adam(model.parameters(), lr=0.1)
        torch.optim.lr_scheduler.StepLR(scheduled, 1)  # which wraps ``step``
        train(optimizer)
        saved = get_state_dict(model, optimizer)
        set_state_dict(model, scheduled, model_state_dict=saved[0], optim_state_dict=saved[1])
        train(scheduled)
    resumed = got.process.optimizer_starts[1]
    assert got.optimizers == [("Adam#0", 0, 0), ("Adam#1", 0, 0)]
    assert (resumed.state, resumed.parameters) == (("exp_avg", "exp_avg_sq", "step"), got.column(Step.PARAMETERS)[0])
