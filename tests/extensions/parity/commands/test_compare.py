"""``rltrace compare`` as a command: what it prints, writes and ends with."""

import json
from pathlib import Path

import pytest
import torch
from whole_number_model import generate, policy, train

import rltrace
from rltrace.commands.main import main
from rltrace.extensions.jax import JAX_ENGINE
from rltrace.testing import TraceBuilder

SEQUENCES, PROMPTS = [[3, 4, 5, 6, 7], [9, 4, 5]], [2, 1]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``equal.zarr`` and ``parts.zarr``: rollout and training in one trace; ``a.zarr`` and ``b.zarr``: two programs, of
    which the second has other names; ``other.zarr``: other tokens; ``bare.zarr``: no rows;
    ``jax.zarr``: of JAX.
    """
    folder = tmp_path_factory.mktemp("compare")

    def both(twist: str) -> None:
        model = policy(twist=twist, at="layers.1.up" if twist else "")
        generate(model, SEQUENCES, PROMPTS)
        train(model, SEQUENCES)

    class Learner(torch.nn.Module):
        """Holds the parts of a policy under other names."""

        def __init__(self) -> None:
            super().__init__()
            self.net = policy()
            for old, new in (("embed", "words"), ("head", "scores")):
                self.net.add_module(new, self.net._modules.pop(old))

        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            self.net.__dict__.update(embed=self.net.words, head=self.net.scores)
            out: torch.Tensor = self.net(*given)
            return out

    programs = {
        "equal": lambda: both(""),
        "parts": lambda: both("operators"),
        "a": lambda: generate(policy(), SEQUENCES, PROMPTS),
        "b": lambda: train(Learner(), SEQUENCES),
        "other": lambda: train(policy(), [[19, 18, 17]]),
    }
    for name, program in programs.items():
        with rltrace.record(folder / f"{name}.zarr", rows="all", values="module=*"):
            program()
    TraceBuilder(folder / "jax.zarr", engine=JAX_ENGINE).finish()
    with rltrace.record(folder / "bare.zarr"):
        train(policy(), SEQUENCES)
    return folder


@pytest.fixture
def run(traces: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Runs ``rltrace compare`` in the folder of the traces: exit status, standard output, standard error."""
    monkeypatch.chdir(traces)

    def call(*arguments: str) -> tuple[int, str, str]:
        return main(["compare", *arguments]), *capfd.readouterr()

    return call


def test_programs_that_agree_end_with_0(run) -> None:  # type: ignore[no-untyped-def]
    status, out, err = run("equal.zarr", "--require", "bitwise")
    assert (status, err) == (0, "")
    assert out.startswith("BITWISE EQUAL\n")
    assert "required bitwise: holds" in out


def test_programs_that_part_end_with_1(run) -> None:  # type: ignore[no-untyped-def]
    """The first lines say where, because of what and how far; the last ones what to run next."""
    status, out, _ = run("parts.zarr")
    head = out.split("\n\n")[0]
    assert status == 1
    assert head.startswith("DIFFERS  from Policy.layers.1.up on\n")
    assert "Different operators: addmm in A, mm, mul, add in B." in head
    assert "The outputs of Policy differ in all 7 rows" in head
    assert "\nNext\n  rltrace ops parts.zarr module=Policy.layers.1.up" in out
    assert run("parts.zarr", "--require", "bitwise")[0] == 1


def test_json_goes_into_a_file(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Whole or not at all, and never over something that is there unless asked."""
    file = tmp_path / "out.json"
    assert run("parts.zarr", "--format", "json", "-o", str(file)) == (1, "", "")
    found = json.loads(file.read_text())
    assert (found["schema"], found["verdict"], found["agrees"]) == ("rltrace.compare/1", "differs", False)
    assert found["first"]["path"]["b"] == "Policy.layers.1.up"
    assert run("parts.zarr", "-o", str(file))[0] == 2
    assert run("parts.zarr", "-o", str(file), "--force")[0] == 1
    assert file.read_text().startswith("DIFFERS")


def test_a_map_brings_other_names_together(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Without it the renamed modules have no partner; with it they are compared too."""
    status, out, _ = run("a.zarr", "b.zarr")
    assert (status, "1 module of A" in out or "2 modules of A" in out) == (0, True)
    names = tmp_path / "names.map"
    names.write_text("# other names\nPolicy.embed = Learner.net.words\nPolicy.head = Learner.net.scores\n")
    status, out, _ = run("a.zarr", "b.zarr", "--map", str(names))
    assert (status, "of A without a partner" in out) == (0, False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["equal.zarr", "--map", "wrong.map"], "no module of A is called Policy.hea; similar: Policy.head"),
        (["equal.zarr", "--map", "missing.map"], "the map missing.map cannot be read"),
        (["bare.zarr"], "holds no activation rows to compare; record it with: rltrace record --rows all"),
        (["jax.zarr"], "is of a JAX program, of which no activation rows are recorded"),
        (["a.zarr"], "a.zarr has no calls with gradient (B)"),
        (["equal.zarr", "--a", "op=addmm"], "--a selects calls of modules, which have no op"),
        (["equal.zarr", "--b", "module=Nothing"], "--b module=Nothing finds no call of equal.zarr"),
        (["equal.zarr:rank9/*"], "has no stream rank9/*"),
        (["equal.zarr", "--require", "bitwize"], "--require bitwize"),
        (["a.zarr", "b.zarr", "equal.zarr"], "one trace or two, not 3"),
        (["nothing.zarr"], "nothing.zarr"),
        (["equal.zarr", "--logprobs", "op=gather,module=missing"], "it finds nothing in A with recorded rows"),
        (["equal.zarr", "--logprobs", "op=a::op=b::op=c"], "A's and B's with :: between them"),
        (["equal.zarr", "--routing", "op=topk"], "--routing"),
    ],
)
def test_what_makes_no_sense_ends_with_2(run, traces: Path, arguments: list[str], said: str) -> None:  # type: ignore[no-untyped-def]
    (traces / "wrong.map").write_text("Policy.hea = Policy.head\n")
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert said in " ".join(err.split())


def test_other_tokens_end_with_3(run) -> None:  # type: ignore[no-untyped-def]
    """Nothing can be said of two programs that were given other sequences; the first of each is shown."""
    status, out, _ = run("a.zarr", "other.zarr")
    assert status == 3
    why = "No sequence of A matches one of B: the two had other tokens, or padding without a mask (--pad)."
    assert " ".join(out.split()).startswith(f"UNDECIDED {why}")
    assert "The first tokens of B were 19 18 17." in " ".join(out.split())


@pytest.mark.parametrize(
    ("given", "required", "status", "said"),
    [
        ("equal.zarr", "logprob<1e-9", 0, "required logprob<1e-09: holds, it is 0 over 5 sampled tokens"),
        ("parts.zarr", "logprob<1", 0, "required logprob<1: holds"),
        ("parts.zarr", "logprob<1e-30", 1, "required logprob<1e-30: FAILS"),
        ("parts.zarr", "logprob-mean<1e-30", 1, "required logprob-mean<1e-30: FAILS"),
        ("a.zarr other.zarr", "kl<1", 3, "required kl<1: undecided"),
    ],
)
def test_limits_on_the_gap_decide(run, given: str, required: str, status: int, said: str) -> None:  # type: ignore[no-untyped-def]
    """A limit that holds is enough, though rows differ; of two sequences three tokens and two were taken. Where no
    token in common has a log-probability, nothing is said to hold."""
    ended, out, _ = run(*given.split(), "--require", required)
    assert (ended, said in " ".join(out.split())) == (status, True), out
    assert ("Log-probabilities of 5 sampled tokens" in out) is (status != 3)
