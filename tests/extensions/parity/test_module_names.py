"""Which module is which: the same paths, wrappers, other roots, and what cannot be matched."""

import pytest

from rltrace.extensions.parity.module_names import MapError, apply_map, match_names, parse_map

TREE = ("", ".embed", ".layers.0", ".layers.0.attn", ".layers.0.attn.q", ".layers.1", ".layers.1.attn.q", ".head")


def _under(root: str, tree: tuple[str, ...] = TREE) -> list[str]:
    return [root + tail for tail in tree]


def test_the_same_paths_belong_together() -> None:
    """One program, two call ranges: nothing is renamed."""
    naming = match_names(_under("Policy"), _under("Policy"))
    assert naming.pairs == tuple(zip(_under("Policy"), _under("Policy"), strict=True))
    assert naming.renamed == naming.ambiguous == ()


def test_wrappers_are_no_part_of_a_name() -> None:
    """DDP, torch.compile and FSDP stand around the same modules."""
    wrapped = [
        "DistributedDataParallel",
        "DistributedDataParallel.module",
        "DistributedDataParallel.module.embed",
        "DistributedDataParallel.module.layers.0._fsdp_wrapped_module.attn",
        "DistributedDataParallel.module.layers.0._orig_mod.attn.q",
        "DistributedDataParallel.module.head",
    ]
    naming = match_names(_under("Policy"), wrapped)
    partners, names = dict(naming.pairs), ("embed", "layers.0.attn", "layers.0.attn.q", "head")
    assert [partners[f"Policy.{name}"] for name in names] == wrapped[2:]


def test_a_module_held_by_another_is_found_by_its_tree() -> None:
    """The trainer holds the policy; its root is the trainer."""
    b = ["Trainer", *_under("Trainer.policy"), "Trainer.value_head"]
    naming = match_names(_under("Policy"), b)
    assert dict(naming.pairs) == dict(zip(_under("Policy"), _under("Trainer.policy"), strict=True))
    assert [(pair.a, pair.b) for pair in naming.renamed] == [("Policy", "Trainer.policy")]


def test_a_second_object_of_a_class_is_found_by_its_tree() -> None:
    """The generator of one trace is another object than the trainer's policy."""
    naming = match_names(_under("Policy#2"), _under("Policy"))
    assert dict(naming.pairs)["Policy#2.layers.1.attn.q"] == "Policy.layers.1.attn.q"


def test_two_trees_that_agree_equally_are_not_guessed() -> None:
    """A policy could be either of two: nothing is matched, and that is said."""
    naming = match_names(_under("Policy"), [*_under("Actor"), *_under("Critic")])
    assert naming.pairs == ()
    assert len(naming.ambiguous) == 1
    assert "Policy = Actor" in naming.ambiguous[0]
    assert "Policy = Critic" in naming.ambiguous[0]


def test_several_roots_are_matched_one_after_the_other() -> None:
    """A's policy and critic are two roots, B's one trainer's: the larger agreement is taken first."""
    a = [*_under("Policy"), "Value", "Value.net", "Value.net.0"]
    b = ["Agent", *_under("Agent.policy"), "Agent.value", "Agent.value.net", "Agent.value.net.0"]
    partners = dict(match_names(a, b).pairs)
    assert partners["Policy.layers.1.attn.q"] == "Agent.policy.layers.1.attn.q"
    assert partners["Value.net.0"] == "Agent.value.net.0"
    assert partners["Value"] == "Agent.value"


def test_what_a_map_says_comes_first() -> None:
    """The rest is found as without a map."""
    b = ["Trainer", *_under("Trainer.actor"), *_under("Trainer.critic")]
    mapped = dict(zip(_under("Policy"), _under("Trainer.critic"), strict=True))
    assert dict(match_names(_under("Policy"), b, mapped).pairs) == mapped


def test_modules_of_one_side_alone_have_no_partner() -> None:
    """Fused projections have none; the others are matched all the same."""
    a = ["M", "M.attn", "M.attn.qkv", "M.attn.o"]
    b = ["M", "M.attn", "M.attn.q", "M.attn.k", "M.attn.v", "M.attn.o"]
    assert [pair[0] for pair in match_names(a, b).pairs] == ["M", "M.attn", "M.attn.o"]


# --- map files --------------------------------------------------------------------------------------------------------


A = ["Gen", "Gen.layers.0.q", "Gen.layers.1.q", "Gen.head"]
B = ["Train", "Train.blocks.0.query", "Train.blocks.1.query", "Train.out"]


def _applied(text: str) -> dict[str, str]:
    return apply_map(parse_map(text, "names.map"), "names.map", A, B)


def test_what_a_star_stood_for_is_carried_over() -> None:
    """Comments and empty lines say nothing."""
    text = "# names\n\nGen.layers.*.q = Train.blocks.*.query   # both layers\nGen.head = Train.out\n"
    assert _applied(text) == {
        "Gen.layers.0.q": "Train.blocks.0.query",
        "Gen.layers.1.q": "Train.blocks.1.query",
        "Gen.head": "Train.out",
    }


def test_a_line_may_say_again_what_another_says() -> None:
    """Only lines that say different things contradict each other."""
    assert _applied("Gen.head = Train.out\nGen.h* = Train.out*".replace("h*", "head*")) == {"Gen.head": "Train.out"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Gen.head", "names.map:1: a line is A-GLOB = B-GLOB"),
        ("Gen.head = ", "names.map:1: a line is A-GLOB = B-GLOB"),
        ("a = b = c", "names.map:1: a line is A-GLOB = B-GLOB"),
        ("# nothing\n", "names.map holds no line"),
        ("\nGen.*.q = Train.out", "names.map:2: each * of A matches one of B: there are 1 on the left, 0 on the"),
        ("Gen.layer.*.q = Train.blocks.*.query", "no module of A is called Gen.layer.*.q; similar: Gen.layers."),
        ("Gen.layers.*.q = Train.block.*.q", "no module of B is called Train.block.0.q, for Gen.layers.0.q of A;"),
        ("Gen.head = Train.out\nGen.head = Train", "names.map:2: Gen.head of A is Train here, and Train.out by line 1"),
        ("Gen.head = Train.out\nGen = Train.out", "names.map:2: Train.out of B is Gen here, and Gen.head by line 1"),
    ],
)
def test_a_line_that_is_wrong_is_named(text: str, said: str) -> None:
    """With its number, what is wrong with it, and names near to the one that is not there."""
    with pytest.raises(MapError) as raised:
        _applied(text)
    assert said in str(raised.value)
