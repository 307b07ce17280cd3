"""What the adapter of SGLang declares, of classes like those that it reads."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from library_modules import module_of
from torch import nn

from rltrace.errors import UsageError
from rltrace.extensions.parity.adapters import sglang
from rltrace.extensions.parity.adapters.checkpoint_names import CheckpointNames, modules_of
from rltrace.extensions.parity.capture.call_facts import Called
from rltrace.recorder.base.patching import Patches
from rltrace.trace.format.activation_rows import BEGINS, PREVIOUS_SLOT, SLOT, Part

TABLE = torch.tensor([[0, 0, 0, 0], [7, 3, 9, 0], [7, 3, 4, 5]], dtype=torch.int32)
"""By request, the slot of each of its tokens: the second and third share the first two tokens."""


class ModelRunner:
    """Computes facts where SGLang computes the model."""

    req_to_token_pool = SimpleNamespace(req_to_token=TABLE)

    def _forward_raw(self, forward_batch: Any, proxies: Any = None) -> dict[str, list[int]]:
        return {name: tensor.tolist() for name, tensor in sglang.batch_facts().items()}


@pytest.fixture
def parallel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The sizes of the groups of workers, in an SGLang that has been imported."""
    parallel, patches = SimpleNamespace(tp_size=1, pp_size=1), list[Patches]()
    runners = SimpleNamespace(ModelRunner=type("ModelRunner", (ModelRunner,), dict(vars(ModelRunner))))
    modules = {
        "model_executor.model_runner": runners,
        "runtime_context": SimpleNamespace(get_parallel=lambda: parallel),
    }
    modules["layers.sampler"] = SimpleNamespace(SGLANG_RETURN_ORIGINAL_LOGPROB=False)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, f"sglang.srt.{name}", module)
    monkeypatch.setattr(sglang, "Patches", lambda: patches.append(Patches()) or patches[-1])
    sglang.follow_runner(None, "")  # type: ignore[arg-type]
    yield parallel
    patches[0].undo_all()


def computed(mode: str, requests: list[int], positions: list[int], slots: list[int], lengths: list[int]) -> Any:
    batch = SimpleNamespace(
        forward_mode=SimpleNamespace(name=mode),
        req_pool_indices=torch.tensor(requests),
        positions=torch.tensor(positions),
        out_cache_loc=torch.tensor(slots),
        extend_seq_lens=torch.tensor(lengths),
    )
    return sys.modules["sglang.srt.model_executor.model_runner"].ModelRunner()._forward_raw(batch)


def test_predecessors_are_those_of_the_table_of_requests(parallel: Any) -> None:
    """A whole prompt, one after a cached prefix, and a decoded token; outside of a batch, nothing."""
    assert computed("EXTEND", [1, 2], [0, 1, 2, 3], [7, 3, 4, 5], [2, 2]) == {
        SLOT: [7, 3, 4, 5],
        PREVIOUS_SLOT: [BEGINS, 7, 3, 4],
    }
    assert computed("DECODE", [1], [2], [9], [1]) == {SLOT: [9], PREVIOUS_SLOT: [3]}
    assert sglang.batch_facts() == {}


@pytest.mark.parametrize(
    ("mode", "slots", "workers", "why"),
    [
        ("TARGET_VERIFY", [9], 1, "mode TARGET_VERIFY"),
        ("DECODE", [8], 1, "not those of its table"),
        ("DECODE", [9, 9], 1, "not those of its table"),
        ("DECODE", [9], 2, "several workers"),
    ],
)
def test_what_does_not_fit_is_unknown(mode: str, slots: list[int], workers: int, why: str, parallel: Any) -> None:
    """Modes and slots that the adapter does not know, and ranks."""
    parallel.tp_size = workers
    with pytest.raises(UsageError, match=why):
        computed(mode, [1], [2], slots, [1])


def test_what_sglang_has_fused_is_declared_as_the_checkpoint_has_it(parallel: Any) -> None:
    """Packed projections by the mapping of the model's class, attention, a norm's sum, log-probabilities."""
    root = module_of("Model", **{sglang.STACKED: {"k_proj": ("qkv_proj", 1), "q_proj": ("qkv_proj", 0)}})
    root.self_attn, root.norm, root.sampler = nn.Module(), module_of("RMSNorm"), module_of("Sampler")
    root.self_attn.qkv_proj, root.self_attn.attn = nn.Module(), module_of("RadixAttention")
    root.self_attn.qkv_proj.output_partition_sizes = [2, 1]
    names, x = CheckpointNames(modules_of), torch.arange(6.0).view(2, 3)

    def points(module: nn.Module, result: Any, *args: Any) -> list[tuple[Part, str, list[float]]]:
        found = sglang.points(names, Called(module, args, result, lambda _: root))
        return [(part, name, tensor.flatten().tolist()) for part, name, tensor in found]

    assert points(root.self_attn.qkv_proj, (x, None)) == [
        (Part.OUTPUT, "self_attn.q_proj", [0, 1, 3, 4]),
        (Part.OUTPUT, "self_attn.k_proj", [2, 5]),
    ]
    whole = x.flatten().tolist()
    assert points(root.self_attn.attn, x, x, None, None, object()) == [
        (Part.INPUT, "self_attn.attention/query", whole),
        (Part.OUTPUT, "self_attn.attention", whole),
    ]
    assert points(root.norm, (x, x)) == [(Part.INPUT, "", whole), (Part.OUTPUT, "", whole)]
    assert points(root.norm, x) == []
    output, drawn = SimpleNamespace(next_token_logprobs=x[:, 0]), SimpleNamespace(is_all_greedy=False)
    assert points(root.sampler, x, output, drawn, True) == [(Part.OUTPUT, "/processed_logprobs", [0, 3])]
    assert points(root.sampler, x, output, drawn, False) == []
    greedy = SimpleNamespace(is_all_greedy=True)
    assert points(root.sampler, x, output, greedy, True) == [(Part.OUTPUT, "/raw_logprobs", [0, 3])]
