"""Programs with one line changed: the finding names the line, the first op that differs, or how the data came in."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rltrace.diff import compare
from rltrace.diff.base.model import Cause, Finding

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "edited_lines.py"

Found = Callable[..., Finding]


@pytest.mark.parametrize("program", ["critic.py", "resumed.py"])
def test_what_is_found_of_fixed_changes(cli: Any, program: str) -> None:
    """By a log of every op that knows nothing of rltrace; no cause that it contradicts, and no UNKNOWN."""
    result = cli.run(sys.executable, BENCHMARK, "--only", f"programs/{program}", "--mutants", 6, "--folder", cli.folder)
    assert result.returncode == 0, result.stdout + result.stderr
    assert " mutants that compute something else: " in result.stdout


@pytest.fixture
def found(versions: Callable[[str, str], list[Path]]) -> Found:
    """``found(program, old, new)``: what a comparison of a program and its edited version rests on."""

    def run(program: str, old: str, new: str) -> Finding:
        assert program.count(old) == 1
        finding = compare(*versions(program, program.replace(old, new))).decisive
        assert finding is not None
        return finding

    return run


TRAINING = """import numpy, torch
torch.manual_seed(0)
actor, critic = torch.nn.Linear(4, 2), torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=0.1)
for update in range(3):
    batch = numpy.full((3, 4), update + 1.0, numpy.float32)
    x = torch.from_numpy(batch)
    scaled = x * 0.5
    loss = actor(scaled).sum()
    value_loss = critic(scaled).square().mean()
    optimizer.zero_grad()
    (loss + value_loss).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [("(loss + value_loss).backward()", "pass"), ("(loss + value_loss)", "loss")],
)
def test_what_the_optimizer_no_longer_gets(found: Found, old: str, new: str) -> None:
    """The first op that one side alone runs leads, not the optimizer's, which computes with what was made of that."""
    finding = found(TRAINING, old, new)
    assert finding.cause is Cause.CONTROL_FLOW and finding.site is not None
    assert (finding.site.line, finding.b_index) == (12, None)


@pytest.mark.parametrize(
    "entry",
    [
        "torch.from_numpy(batch)",
        "torch.as_tensor(batch)",
        "torch.tensor(batch)",
        "torch.Tensor(batch)",
        "torch.FloatTensor(batch.tolist())",
        "torch.frombuffer(bytearray(batch.tobytes()), dtype=torch.float32).view(3, 4)",
        "torch.from_dlpack(batch)",
    ],
)
def test_where_data_became_a_tensor(found: Found, entry: str) -> None:
    """The op that reads the data first is named, and the line where it came in."""
    finding = found(TRAINING.replace("torch.from_numpy(batch)", entry), "update + 1.0", "update + 2.0")
    assert finding.cause is Cause.OUTSIDE
    assert "float32 data became a tensor at train.py:7" in finding.explanation


RETURNS = """import torch
rewards, values = torch.rand(8, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(8, 4)
weight = torch.zeros(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for update in range(3):
    dones = torch.zeros(8, 4)
    for t in range(8):
        dones[t] = torch.full((4,), float(t == 5 and update == 2))
        values[t] = weight.detach() + t
    with torch.no_grad():
        advantages = torch.zeros_like(rewards)
        last, done, after = 0.0, torch.zeros(4), torch.ones(4)
        for t in reversed(range(8)):
            alive = 1.0 - (done if t == 7 else dones[t + 1])
            following = after if t == 7 else values[t + 1]
            delta = rewards[t] + 0.9 * following * alive - values[t]
            advantages[t] = last = delta + 0.9 * 0.9 * alive * last
    (weight * advantages).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("read", "why"),
    [
        ("dones[t {} 1]", "it was called with index=7 in A, 5 in B"),
        ("values[t {} 1]", "is elements 28 to 31 of what several ops wrote in"),
    ],
)
def test_a_loop_that_reads_other_rows(found: Found, read: str, why: str) -> None:
    """Calls of other iterations that read the same rows stand for none: what differs is which rows a line reads."""
    finding = found(RETURNS, read.format("+"), read.format("-"))
    assert finding.cause is Cause.ARGUMENTS and finding.site is not None and why in finding.explanation
    assert finding.site.line == 14 or "only A runs aten.select.int at train.py:15" in finding.explanation


REPLAY = """import numpy, torch
memory = torch.empty(64)
memory[:8] = torch.arange(8.0)
rows = torch.from_numpy(numpy.arange(4) * 2)
batch = memory[rows] * 2.0
"""


def test_rows_of_memory_that_was_not_filled(found: Found) -> None:
    """Uninitialised memory that an op reads explains nothing where it was given other rows."""
    finding = found(REPLAY, "* 2)", "* 12)")
    assert finding.cause is Cause.OUTSIDE and "became a tensor at train.py:4" in finding.explanation


def test_an_extra_op_before_other_data(found: Found) -> None:
    """What a side brings in may depend on the way that it took: the first op that one side alone ran is named, too."""
    program = "import numpy, torch\nnumbers = numpy.random.default_rng(0)\nweight = torch.zeros(3)\n"
    program += "weight.copy_(torch.from_numpy(numbers.standard_normal(3)))\n"
    program += "total = torch.from_numpy(numbers.standard_normal(3)) + 1\n"
    finding = found(program, "weight.copy_(torch.from_numpy(numbers.standard_normal(3)))", "pass")
    assert finding.cause is Cause.OUTSIDE
    assert "before it, only A runs" in finding.explanation and "train.py:4" in finding.explanation


EPOCHS = """import torch
torch.manual_seed(0)
layers = [torch.nn.Linear(4, 4) for _ in range(2)]
model = torch.nn.Sequential(*layers)
def train(rows, epochs):
    optimizer = torch.optim.Adam([*model.parameters()], lr=0.1)
    for update in range(2):
        x = torch.zeros(1, 4)
        seen = []
        for _ in range(rows):
            x = torch.tanh(model(x).detach() + 0.1 * torch.randn(1, 4))
            seen.append(x)
        seen = torch.cat(seen)
        for _ in range(epochs):
            for chosen in torch.randperm(rows).split(4):
                optimizer.zero_grad()
                (model(seen[chosen]) - 1).square().mean().backward()
                optimizer.step()
train(8, 2)
"""


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
@pytest.mark.parametrize(
    ("old", "new", "line", "op", "why"),
    [
        ("train(8, 2)", "train(8, 3)", 15, "randperm", "a step of Adam, which A does not make, follows"),
        ("train(8, 2)", "train(9, 2)", 11, "t", "aten.randn.default (row 86) of the same line draws"),
        ("range(2)]", "range(3)]", 3, "empty", "aten.uniform_.default (row 10) of the same line draws"),
        ("[*model.parameters()]", "[*model.parameters()] * 2", 18, "add_", "of the same line"),
    ],
)
def test_more_of_a_loop(found: Found, old: str, new: str, line: int, op: str, why: str) -> None:
    """An epoch, a row, a member of a list, a tensor of an optimizer: the first op of it, not one that draws later."""
    finding = found(EPOCHS, old, new)
    assert (finding.cause, finding.a_index) == (Cause.CONTROL_FLOW, None)
    assert finding.op is not None and finding.op.split(".")[1] == op and why in finding.explanation
    assert next(site.line for site in finding.stack if site.file == "train.py") == line
