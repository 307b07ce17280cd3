"""Two versions of a program, really recorded: what was changed in the second is what is found, and nothing else.

Recorded in this process, each version from a folder of its own, as the command line is not the point here.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from shortcuts import ALL_AT_ONCE, EACH, compare_checked

from rltrace.diff import Comparison
from rltrace.diff.base.model import Cause, Finding, Verdict

Both = Callable[..., Comparison]

TRAINING = """
import torch
{top}
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for update in range(5):
    x = torch.randn(8, 4)
    {start}
    loss = model(x).pow(2).mean()
    {middle}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {end}
"""


def training(top: str = "", start: str = "pass", middle: str = "pass", end: str = "pass") -> str:
    """Five updates of a small network, with lines of one's own."""
    return TRAINING.format(top=top, start=start, middle=middle, end=end)


@pytest.fixture
def both(versions: Callable[[str, str], list[Path]]) -> Both:
    """``both(a, b, each=False)``: record two versions of ``train.py`` and compare them.

    The result is the same without the shortcuts of a comparison, all at once, or each by itself.
    """
    return lambda a, b, each=False: compare_checked(*versions(a, b), EACH if each else ALL_AT_ONCE)


def value_of(comparison: Comparison) -> Finding:
    assert comparison.verdict is Verdict.DIVERGED
    assert comparison.first_value is not None
    return comparison.first_value


def summary(finding: Finding | None) -> tuple[Cause, str | None, int | None, str]:
    """Cause, op, step and source line."""
    assert finding.site is not None
    return finding.cause, finding.op, finding.step, finding.site.source


# --- ops that come, go and change places ------------------------------------------------------------------------------


@pytest.mark.parametrize("added", ["a", "b"])
def test_ops_that_nothing_uses(both: Both, added: str) -> None:
    """Log lines in one version: the same values, and exactly the ops of those lines are hunks of that side."""
    plain, logging = training(), training(middle="print(loss.detach().abs().item(), x.norm().item())")
    comparison = both(*((logging, plain) if added == "a" else (plain, logging)), each=True)
    assert comparison.verdict is Verdict.SAME_VALUES
    assert comparison.first_value is None
    structure = comparison.structure
    counts = (structure.only_a, structure.only_b)
    assert counts == ((25, 0) if added == "a" else (0, 25))  # detach, abs, item, norm, item
    assert [(hunk.kind, hunk.step) for hunk in structure.hunks] == [(f"only-{added}", step) for step in range(5)]
    assert structure.reordered == 0


def test_an_op_that_something_uses(both: Both) -> None:
    """An op inserted between changes what comes after it: control flow, at the new op and not at its first reader."""
    line = "x = x * 1.5 if update == 2 else x"
    comparison = both(training(), training(start=line))
    assert summary(comparison.first) == (Cause.CONTROL_FLOW, "aten.mul.Tensor", 2, line)
    assert comparison.decisive == comparison.first
    reader = value_of(comparison)
    assert summary(reader)[:3] == (Cause.CONTROL_FLOW, "aten.addmm.default", 2)
    assert "by aten.mul.Tensor" in reader.explanation


def test_data_in_another_order(both: Both) -> None:
    """Of data from a list, what one side reads that the other reads at another call of the line is said to be that."""
    top, start = "data = [[float(k + j * j) for j in range(4)] for k in range(5)]", "x = torch.tensor([data[{}]] * 8)"
    comparison = both(*(training(top=top, start=start.format(at)) for at in ("update", "(0, 3, 2, 1, 4)[update]")))
    found = value_of(comparison)
    assert (found.cause, found.step) == (Cause.OUTSIDE, 1)
    (row,) = re.findall(r"and is in B what A reads at row ([\d,]+)(?:;|$)", found.explanation)
    assert int(row) > (found.a_index or 0)


def test_lines_that_changed_places(both: Both) -> None:
    """Two lines that do not depend on each other, now in the other order."""
    a = training(top="kept = []", start="kept.append(x.sin())", middle="kept.append(x.cos())")
    b = training(top="kept = []", start="kept.append(x.cos())", middle="kept.append(x.sin())")
    comparison = both(a, b)
    assert comparison.verdict is Verdict.SAME_VALUES
    structure = comparison.structure
    assert (structure.only_a, structure.only_b) == (0, 0)
    assert structure.reordered > 0
    assert {hunk.kind for hunk in structure.hunks} == {"reordered"}


def test_an_argument_in_a_loop_over_a_set(both: Both) -> None:
    """The losses of a step in the order of a set, one of them weighted otherwise: that one is named."""
    top = "order, weight = {}"
    losses = """parts = {}
    for name in order:
        parts[name] = model(x + name).pow(2).mean() * (weight if name == 2 else 1.0)
    loss = sum(parts[name] for name in range(4))"""
    comparison = both(
        training(top.format("(0, 1, 2, 3), 1.0"), middle=losses),
        training(top.format("(2, 3, 1, 0), 1.5"), middle=losses),
        each=True,
    )
    changed = "parts[name] = model(x + name).pow(2).mean() * (weight if name == 2 else 1.0)"
    assert summary(comparison.first) == (Cause.ARGUMENTS, "aten.mul.Tensor", 0, changed)
    assert value_of(comparison).explanation == "it was called with other=1.0 in A, 1.5 in B"
    assert comparison.structure.reordered > 0


def test_a_line_at_the_other_end_of_a_loop(both: Both) -> None:
    """Gradients are cleared after a step instead of before the next: another op is the last, and no run ended early."""
    clear = "    optimizer.zero_grad()\n"
    moved = training().replace(clear, "").replace("    optimizer.step()\n", f"    optimizer.step()\n{clear}")
    assert both(training(), moved).verdict is Verdict.SAME_VALUES


def test_more_rounds_of_an_evaluation(both: Both) -> None:
    """Two rounds more after each update, after the last one too: no run ended early."""
    top = """
ROUNDS = {}

def evaluate():
    with torch.no_grad():
        return [model(torch.ones(2, 4) * k).sum().item() for k in range(ROUNDS)]
"""
    comparison = both(training(top.format(3), end="evaluate()"), training(top.format(5), end="evaluate()"))
    assert comparison.verdict is Verdict.SAME_VALUES
    assert comparison.structure.only_a == 0
    assert comparison.structure.only_b % 10 == 0 and comparison.structure.only_b > 0


def test_a_write_that_one_version_makes(both: Both) -> None:
    """One element of a weight, written through ``.data`` by an op that is recorded: no write that went unseen."""
    comparison = both(training(), training(end="model[0].weight.data[0, 0] = 1.0"), each=True)
    found = value_of(comparison)
    assert summary(found)[:3] == (Cause.CONTROL_FLOW, "aten.addmm.default", 1)
    fills = "(copy_.default|fill_.Scalar)"  # the second from torch 2.15 on
    assert re.search(rf"and in B was last written by aten\.{fills} at train\.py:15", found.explanation)
    assert found.explanation.endswith("which only B runs")


def test_an_argument_that_has_a_default(both: Both) -> None:
    """torch leaves out what equals a default; what is left is shown in words that can be read."""
    a, b = (training().replace("Tanh()", f"Dropout({rate})") for rate in (0.5, 0.25))
    found = value_of(both(a, b))
    assert summary(found)[:2] == (Cause.ARGUMENTS, "aten.bernoulli_.float")
    assert found.explanation.endswith("it was called with p=its default in A, 0.75 in B")


def test_line_numbers_that_moved(both: Both) -> None:
    """Comments and imports on top, and another folder, change nothing."""
    top = "# seeds\n# are set below\nimport math\n\n\ndef unused(x):\n    return math.sin(x)\n"
    assert both(training(), training(top=top), each=True).verdict is Verdict.IDENTICAL


# --- code of every shape ----------------------------------------------------------------------------------------------

GENERATOR = """
ODD = {odd}


def batches(x):
    for k, row in enumerate(x):
        yield row * (2.0 if (update, k) == ODD else 1.0)
"""


def test_a_generator_function(both: Both) -> None:
    """The third element of the second round is named."""
    a, b = (training(GENERATOR.format(odd=odd), "x = torch.stack(list(batches(x)))") for odd in (None, (1, 2)))
    found = value_of(both(a, b))
    source = "yield row * (2.0 if (update, k) == ODD else 1.0)"
    assert summary(found) == (Cause.ARGUMENTS, "aten.mul.Tensor", 1, source)
    assert found.site.function == "batches"


def test_a_lambda_in_a_comprehension(both: Both) -> None:
    """One element of a list, computed by a lambda: both are named."""
    top = "scales = [1.0] * 8\nscaled = lambda row, scale: row * scale"
    start = "x = torch.stack([scaled(row, scale) for row, scale in zip(x, scales)])"
    a, b = (training(f"{top}\nODD = {odd}", start, end="scales[5] = ODD") for odd in (1.0, 3.0))
    found = value_of(both(a, b))
    assert summary(found) == (Cause.ARGUMENTS, "aten.mul.Tensor", 1, "scaled = lambda row, scale: row * scale")
    around = "<listcomp>" if sys.version_info < (3, 12) else "<module>"  # later Pythons inline comprehensions
    assert [site.function for site in found.stack[:2]] == ["<lambda>", around]


MADE = """
code = '''
def scaled(x):
    return x * {factor} + 0.5
'''
exec(code)
"""


def test_code_without_source(both: Both) -> None:
    """A function made by ``exec``: nothing but its name is known of a line, and its ops are matched all the same."""
    found = value_of(both(*(training(MADE.format(factor=factor), "x = scaled(x)") for factor in (2.0, 3.0))))
    assert summary(found) == (Cause.ARGUMENTS, "aten.mul.Tensor", 0, "")
    assert (found.site.file, found.site.function) == ("<string>", "scaled")


# --- optimizers and their cadence -------------------------------------------------------------------------------------

TWO_OPTIMIZERS = """
import torch
LEFT_OUT = {left_out}
torch.manual_seed(0)
actor, critic = torch.nn.Linear(4, 2), torch.nn.Sequential(torch.nn.Linear(4, 1))
slow, fast = torch.optim.Adam(actor.parameters()), torch.optim.Adam(critic.parameters())
for update in range(12):
    x = torch.randn(8, 4)
    loss = (critic(x) - x.sum(1, keepdim=True)).pow(2).mean()
    fast.zero_grad()
    loss.backward()
    fast.step()
    if update % 2 == 1 and update != LEFT_OUT:
        gain = -critic(actor(x).repeat(1, 2)).mean()
        slow.zero_grad()
        gain.backward()
        slow.step()
"""


def test_an_attempt_left_out(both: Both) -> None:
    """One of two optimizers makes an attempt less: found where its turn is, and later steps are matched by count."""
    comparison = both(*(TWO_OPTIMIZERS.format(left_out=left_out) for left_out in (None, 5)), each=True)
    line = "gain = -critic(actor(x).repeat(1, 2)).mean()"
    first = comparison.first
    assert summary(first)[::3] == (Cause.CONTROL_FLOW, line)
    assert first.b_index is None
    assert (first.optimizer.ordinal, first.optimizer.owner, first.optimizer.count) == (1, "Linear", 2)
    assert comparison.decisive == first
    later = value_of(comparison)  # the actor is another one now, and its next turn shows it
    assert summary(later)[::3] == (Cause.CONTROL_FLOW, line)
    assert later.a_index is not None and later.b_index is not None and later.a_index > later.b_index


SCALED = """
import numpy as np
import torch
ODD = {odd}
torch.manual_seed(0)
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
for update in range(6):
    seen = np.full(4, np.inf if update in ODD else update, np.float32)
    loss = (weight * torch.as_tensor(seen)).sum()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def test_a_scaler_that_skips_in_one(both: Both) -> None:
    """The overflow came with the data: that is the cause, and not that the scaler skipped."""
    a, b = (SCALED.format(odd=odd) for odd in ({2}, {2, 4}))
    found = value_of(both(a, b, each=True))
    assert summary(found) == (Cause.OUTSIDE, "aten.mul.Tensor", 4, "loss = (weight * torch.as_tensor(seen)).sum()")
    assert found.optimizer.count == 4


ACCUMULATED = """
import torch
EVERY, ODD = {every}, {odd}
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in range(12):
    x = torch.rand(8, 4)
    loss = model(x * (2.0 if batch == ODD else 1.0)).pow(2).mean() / EVERY
    loss.backward()
    if batch % EVERY == EVERY - 1:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("a", "b", "op", "step"),
    [
        ({"every": 3, "odd": -1}, {"every": 3, "odd": 7}, "aten.mul.Tensor", 2),
        ({"every": 2, "odd": -1}, {"every": 3, "odd": -1}, "aten.div.Tensor", 0),
    ],
    ids=["the second of three batches of the third step", "more batches to a step"],
)
def test_accumulated_batches(both: Both, a: dict[str, int], b: dict[str, int], op: str, step: int) -> None:
    """One batch that differs is found in its step; their number in what the loss is divided by, before the steps."""
    found = value_of(both(*(ACCUMULATED.format(**given) for given in (a, b))))
    assert summary(found)[:3] == (Cause.ARGUMENTS, op, step)


# --- a long time before the first step --------------------------------------------------------------------------------

ROLLOUT = """
import torch
ODD = {odd}
torch.manual_seed(0)
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
state = torch.zeros(2)
with torch.no_grad():
    for step in range(1_800):
        state = torch.tanh(state + weight)
        {line}
        state = state * (0.5 if step == ODD else 0.25) + 1
loss = (weight * state).sum()
loss.backward()
optimizer.step()
"""


def test_a_rollout_of_many_windows(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step cuts it, log lines lie in between, and the one number that differs is found where it is."""
    for module in ("blocks", "reorder", "window"):
        monkeypatch.setattr(f"rltrace.diff.align.{module}.WINDOW_ROWS", 1 << 11)
    logged = "print(end=str(state.sum().item())[:0]) if step % 50 == 0 else None"
    a = ROLLOUT.format(odd=-1, line="pass")
    b = ROLLOUT.format(odd=1_740, line=logged)
    comparison = both(a, b)
    found = value_of(comparison)
    assert summary(found)[:3] == (Cause.ARGUMENTS, "aten.mul.Tensor", 0)
    assert "0.25 in A, 0.5 in B" in found.explanation
    assert found.a_index is not None and found.b_index is not None
    assert found.b_index - found.a_index == comparison.structure.only_b == 2 * 35
    assert found.identical_before == found.a_index


# --- what comes from outside ------------------------------------------------------------------------------------------

SIMULATOR = """
import numpy as np
import torch
ODD = {odd}
torch.manual_seed(0)
state = np.zeros(4, np.float32)
seen = torch.from_numpy(state)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for update in range(4):
    values = []
    for step in range(10):
        state[:] = update + step + (0.5 if (update, step) == ODD else 0.0)
        values.append(model(seen))
    loss = torch.stack(values).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_buffer_that_a_simulator_rewrites(both: Both) -> None:
    """One of forty writes into memory that torch only looks at: outside, at the first op that sees it."""
    comparison = both(SIMULATOR.format(odd=None), SIMULATOR.format(odd=(2, 6)), each=True)
    found = value_of(comparison)
    assert summary(found) == (Cause.OUTSIDE, "aten.addmm.default", 2, "values.append(model(seen))")
    assert found.module == "Linear"
    assert comparison.first == found


CHOICE = """
import numpy as np
import torch
ODD = {odd}
weight = torch.nn.Parameter(torch.zeros(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
for update in range(5):
    scores = torch.as_tensor(np.float32([update % 3 == k for k in range(3)]) * (2 if update == ODD else 1))
    chosen = scores.argmax()
    loss = (weight[chosen] - 1).pow(2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


def test_values_that_become_equal_again(both: Both) -> None:
    """Other scores, the same choice: found at the scores, and no logged scalar differs."""
    comparison = both(CHOICE.format(odd=-1), CHOICE.format(odd=2))
    found = value_of(comparison)
    assert summary(found) == (Cause.OUTSIDE, "aten.argmax.default", 2, "chosen = scores.argmax()")
    assert [pair.a == pair.b for pair in found.outputs] == [True]
    assert comparison.drift == ()


def test_another_checkpoint(both: Both, tmp_path: Path) -> None:
    """What a file brought in comes from outside, at the line that loads it."""
    for name, number in (("a.pt", 0.5), ("b.pt", 0.25)):
        torch.save({"0.weight": torch.full((8, 4), number)}, tmp_path / name)
    line = "model.load_state_dict(torch.load(CHECKPOINT), strict=False)"
    top = "CHECKPOINT = {!r}"
    a, b = (
        training(top.format(str(tmp_path / name))).replace("\nfor update", f"\n{line}\nfor update")
        for name in ("a.pt", "b.pt")
    )
    found = value_of(both(a, b, each=True))
    assert summary(found) == (Cause.OUTSIDE, "checkpoint", 0, line)
    assert found.at_op.op == "aten.copy_.default"
    assert "loaded" in found.explanation


# --- steps that one side alone makes ----------------------------------------------------------------------------------

STEP = "    optimizer.step()\n"
SGD = "torch.optim.SGD(model.parameters(), lr=0.1)"
TWICE = "optimizer.step(); optimizer.step()"
SHOWN = "\nprint(model[0].weight.sum().item())\n"


@pytest.mark.parametrize(
    ("condition", "shown", "turned"),
    [("False", "", False), ("update < 2", SHOWN, True), ("update < 4", "", True), ("update < 4", SHOWN, False)],
)
def test_a_step_left_out(both: Both, condition: str, shown: str, turned: bool) -> None:
    """Always, from some update on, or once at the end: the step that one side alone makes, and what the other does."""
    whole = training() + shown
    codes = [whole, whole.replace(STEP, f"    if {condition}: optimizer.step()\n")]
    comparison = both(*(codes[::-1] if turned else codes))
    found = comparison.decisive
    first = {"False": 0, "update < 2": 2, "update < 4": 4}[condition]
    assert comparison.verdict is Verdict.DIVERGED and found is not None
    if condition == "update < 4" and not shown:
        assert (found.cause, found.step) == (Cause.ENDED, 4)
        return
    assert summary(found) == (Cause.CONTROL_FLOW, "aten.add_.Tensor", first, "optimizer.step()")
    mine, other = ("B", "A") if turned else ("A", "B")
    assert found.explanation.startswith(f"only {mine} runs it")
    assert found.explanation.endswith(f"a step of SGD, which {other} does not make")


def test_another_class_of_optimizer(both: Both) -> None:
    """Its ops are none of the other's, although both are at one line."""
    comparison = both(training(), training().replace(SGD, SGD.replace("SGD", "Adam")))
    assert summary(comparison.decisive)[::3] == (Cause.CONTROL_FLOW, "optimizer.step()")
    assert value_of(comparison).cause is Cause.CONTROL_FLOW


@pytest.mark.parametrize(
    ("step", "at", "turned"), [("if update % 2 == 0: optimizer.step()", 1, False), (TWICE, 1, True)]
)
def test_another_number_of_steps(both: Both, step: str, at: int, turned: bool) -> None:
    """A step at every second update, or two at each: the first one that A alone makes, not those after it."""
    codes = training(), training().replace(STEP, f"    {step}\n")
    comparison = both(*(codes[::-1] if turned else codes))
    found = comparison.decisive
    assert summary(found) == (Cause.CONTROL_FLOW, "aten.add_.Tensor", at, TWICE if turned else "optimizer.step()")
    assert found is not None and found.b_index is None
    assert found.explanation.endswith("a step of SGD, which B does not make")


def test_an_optimizer_that_is_made_anew(both: Both) -> None:
    """It begins without state: whose step it is, where the other side makes a later one of its own."""
    adam = training().replace(SGD, SGD.replace("SGD", "Adam"))
    anew = f"    if update == 2: optimizer = {SGD.replace('SGD', 'Adam')}\n"
    found = both(adam, adam.replace(STEP, anew + STEP)).decisive
    assert found is not None and (found.cause, found.step, found.a_index) == (Cause.CONTROL_FLOW, 2, None)
    assert found.explanation.endswith("the 1st step of another Adam, where A makes the 3rd of its own")


def test_steps_of_one_side_that_change_nothing(both: Both) -> None:
    """With a rate of zero, it does not matter how often a step is made."""
    code = training().replace(SGD, SGD.replace("0.1", "0.0"))
    comparison = both(code + SHOWN, code.replace(STEP, "    if update % 2: optimizer.step()\n") + SHOWN)
    assert comparison.verdict is Verdict.SAME_VALUES


@pytest.mark.parametrize("instead", ["pass", "first_step() if update else None"])
def test_a_step_of_one_of_two_optimizers_left_out(both: Both, instead: str) -> None:
    """The other's steps are compared with its own, although it is now the first to make one."""
    two = training(
        start="second.zero_grad(); head(x).mean().backward(); first_step()",
        top="""
first_step = lambda: second.step()
head = torch.nn.Linear(4, 1)
second = torch.optim.SGD(head.parameters(), lr=0.1)
""",
    )
    comparison = both(two, two.replace("first_step()\n", f"{instead}\n"))
    cause, _, step, source = summary(comparison.decisive)
    assert (cause, step, source) == (Cause.CONTROL_FLOW, 0, "first_step = lambda: second.step()")


def test_a_scaler_that_skips_another_step(both: Both) -> None:
    """A step that only one side's scaler skips is made by both, and runs other ops."""
    scaled = (
        training(top="scaler = torch.amp.GradScaler('cpu', init_scale=SCALE)")
        .replace("    loss.backward()\n", "    scaler.scale(loss * (1e38 if update == 2 else 1.0)).backward()\n")
        .replace(STEP, "    scaler.step(optimizer); scaler.update()\n")
    )
    comparison = both(scaled.replace("SCALE", "1.0"), scaled.replace("SCALE", "65536.0"))
    assert comparison.verdict is Verdict.DIVERGED
    assert summary(comparison.decisive)[0] is Cause.ARGUMENTS


# --- other ends, other programs ---------------------------------------------------------------------------------------


def test_a_run_that_ends_early(both: Both) -> None:
    """Equal as far as it went; at which op the other goes on is reported."""
    a, b = training(top="UPDATES = 5"), training(top="UPDATES = 3")
    comparison = both(*(code.replace("range(5)", "range(UPDATES)") for code in (a, b)), each=True)
    assert comparison.verdict is Verdict.DIVERGED
    assert comparison.first_value is None
    assert summary(comparison.first) == (Cause.ENDED, "aten.randn.default", 3, "x = torch.randn(8, 4)")
    assert comparison.first is not None and "2 optimizer steps more" in comparison.first.explanation


def test_programs_that_have_nothing_in_common(both: Both) -> None:
    """No op is blamed."""
    comparison = both(training(), SIMULATOR.format(odd=None))
    assert comparison.verdict is Verdict.UNKNOWN
    assert "different programs" in comparison.why
