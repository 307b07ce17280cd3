"""A library's own mixture of experts: sampled by its ``generate`` with a cache, trained on whole sequences."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from row_replays import rows_block

import rltrace
from rltrace.report.link_checks import missed_faults
from rltrace.trace.read.reader import open_trace

transformers = pytest.importorskip("transformers")

PROMPTS = torch.tensor([[0, 0, 5, 6, 7], [1, 2, 3, 4, 5]])


def make() -> Any:
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=8,
        num_experts_per_tok=2,
        pad_token_id=0,
        eos_token_id=63,
        initializer_range=0.3,
    )
    return transformers.Qwen3MoeForCausalLM(config)


def mask_of(ids: torch.Tensor) -> torch.Tensor:
    """The prompts' padding; what was sampled counts, whatever it is."""
    mask = torch.ones_like(ids)
    mask[:, : PROMPTS.shape[1]] = PROMPTS != 0
    return mask


def train(ids: torch.Tensor, *, anew: bool) -> list[torch.Tensor]:
    """A pass forward and back with another router; the gradients."""
    model = make()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "gate.weight" in name:
                parameter += 0.05 * torch.randn_like(parameter)
    if anew:
        model.train()
        model.gradient_checkpointing_enable()
    mask = mask_of(ids)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    logits.log_softmax(-1).sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def chosen(path: Path) -> list[np.ndarray]:
    """What each ``topk`` of the trace chose, in order; what was computed anew left out."""
    process = open_trace(path).processes[0]
    calls = [call for call in process.activations.calls(0) if call.module.endswith("gate") and call.phase != "backward"]
    tensors = [tensor for call in calls for tensor in call.tensors if tensor.name == "2"]
    return [process.values.get(tensor.whole).numbers for tensor in tensors]  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_routing_of_generate_is_replayed_in_training(tmp_path: Path) -> None:
    """Left padding, prefill and cached steps against whole sequences: every token takes the experts it took."""
    model = make().eval()
    torch.manual_seed(1)
    with rltrace.record(tmp_path / "a.zarr", rows=["module=*", "op=aten.topk"]):
        ids = model.generate(PROMPTS, attention_mask=(PROMPTS != 0).long(), max_new_tokens=5, do_sample=True, top_k=0)
    gradients = []
    for anew in (False, True):
        with rows_block(tmp_path / "a.zarr", "op=aten.topk,module=*gate*", tmp_path / "c.zarr", force=True) as made:
            gradients.append(train(ids, anew=anew))
        assert made.account.complete
        counts = [(each.selected, each.unmatched, each.recomputed) for each in made.account.modules]
        assert counts == [(16, 2, 16 * anew)] * 2
        assert made.account.modules[0].injected > 0
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
    rollout = chosen(tmp_path / "a.zarr")
    for layer, own in enumerate(chosen(tmp_path / "c.zarr")):
        prefill, *steps = (each.reshape(2, -1, 2) for each in rollout[layer::2])
        sampled = np.concatenate([prefill, *steps], axis=1)
        tokens = mask_of(ids).bool().numpy()[:, :-1]
        assert (own.reshape(2, -1, 2)[:, :-1][tokens] == sampled[tokens]).all()


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_no_write_is_missed_in_an_update(tmp_path: Path) -> None:
    """Attention, routing, checkpointed layers and their backward pass: links are as they should be."""
    with rltrace.record(tmp_path / "a.zarr", check_links=True):
        train(PROMPTS, anew=True)
    trace = open_trace(tmp_path / "a.zarr")
    assert trace.processes[0].checks_links and missed_faults(trace) == []
