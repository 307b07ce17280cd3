"""What adapters declare of a library's modules, on modules made as that library makes them."""

import sys
from importlib import metadata
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from library_modules import module_of
from torch import nn

from rltrace.errors import UsageError
from rltrace.extensions import parity
from rltrace.extensions.parity.adapters import sglang, torchtitan, transformers, vllm
from rltrace.extensions.parity.adapters.checkpoint_names import CheckpointNames, modules_of
from rltrace.extensions.parity.capture.call_facts import Called
from rltrace.recorder.base.options import RecordOptions
from rltrace.trace.format.activation_rows import NAMED, Part

MAP: dict[str, str | None] = {
    "model.embed_tokens.weight": "tok_embeddings.weight",
    "model.layers.{}.self_attn.q_proj.weight": "layers.{}.attention.qkv_linear.wq.weight",
    "model.layers.{}.self_attn.k_proj.weight": "layers.{}.attention.qkv_linear.wk.weight",
    "model.layers.{}.self_attn.v_proj.weight": "layers.{}.attention.qkv_linear.wv.weight",
    "model.layers.{}.self_attn.o_proj.weight": "layers.{}.attention.wo.weight",
    "model.layers.{}.self_attn.rotary_emb.inv_freq": None,
    "model.layers.{}.input_layernorm.weight": "layers.{}.attention_norm.weight",
    "model.layers.{}.mlp.experts.{}.up_proj.weight": "layers.{}.moe.experts.w3",
}


def titan_model() -> nn.Module:
    attention = nn.ModuleDict(
        {"qkv_linear": module_of("FusedQKVLinear"), "wo": nn.Identity(), "inner_attention": nn.Identity()}
    )
    experts = nn.ModuleDict({"experts": nn.Identity()})
    layer = nn.ModuleDict({"attention": attention, "attention_norm": nn.Identity(), "moe": experts})
    return nn.ModuleDict({"tok_embeddings": nn.Identity(), "layers": nn.ModuleDict({"0": layer, "11": layer})})


def test_modules_of_torchtitan_have_the_names_of_its_map() -> None:
    """Those around others and attention itself too; a fused layer has its parts' names, and experts, of which several
    are one module, none.
    """
    model = titan_model()
    paths = {module: path for path, module in modules_of(model)}
    names = {paths[module]: name for name, module in torchtitan.named_modules(model, MAP)}
    layer, parts = "model.layers.0", ("q_proj", "k_proj", "v_proj")
    assert names == {
        "tok_embeddings": "model.embed_tokens",
        "layers.0": layer,
        "layers.0.attention_norm": f"{layer}.input_layernorm",
        "layers.0.attention": f"{layer}.self_attn",
        "layers.0.attention.wo": f"{layer}.self_attn.o_proj",
        "layers.0.attention.inner_attention": f"{layer}.self_attn.attention",
        "layers.0.attention.qkv_linear": " ".join(f"{layer}.self_attn.{part}" for part in parts),
    }


def engine_model() -> Any:
    root = module_of("Engine", packed_modules_mapping={"qkv_proj": ["q_proj", "k_proj", "v_proj"]})
    root.attention, root.norm = nn.Module(), module_of("RMSNorm")
    root.attention.qkv_proj, root.attention.attn = nn.Module(), module_of("Attention")
    root.attention.qkv_proj.output_partition_sizes = [4, 2, 2]
    return root


def test_what_vllm_has_fused_is_declared_as_the_checkpoint_has_it() -> None:
    """Packed projections one by one, of a norm the sum that it is of, attention by its name, and of a sampler what it
    returns of the sampled tokens, by its mode."""
    root, names = engine_model(), CheckpointNames(modules_of)
    packed, summed = torch.arange(16.0).view(2, 8), torch.ones(2, 4)

    def points(module: nn.Module, result: Any) -> list[tuple[Part, str, list[float]]]:
        called = Called(module, (), result, lambda _: root)
        return [(part, name, x.flatten().tolist()) for part, name, x in vllm.points(names, called)]

    assert points(root.attention.qkv_proj, (packed, None)) == [
        (Part.OUTPUT, "attention.q_proj", [0, 1, 2, 3, 8, 9, 10, 11]),
        (Part.OUTPUT, "attention.k_proj", [4, 5, 12, 13]),
        (Part.OUTPUT, "attention.v_proj", [6, 7, 14, 15]),
    ]
    assert points(root.norm, (2 * summed, summed)) == [(Part.INPUT, "", [1] * 8), (Part.OUTPUT, "", [2] * 8)]
    assert points(root.norm, summed) == []
    sampled = SimpleNamespace(logprobs_tensors=SimpleNamespace(logprobs=packed))
    sampler = module_of("Sampler", logprobs_mode="processed_logprobs")
    assert points(sampler, sampled) == [(Part.OUTPUT, "/processed_logprobs", [0, 8])]
    assert points(sampler, SimpleNamespace(logprobs_tensors=None)) == []
    assert points(root.attention.attn, summed) == [(Part.OUTPUT, f"attention.attention{NAMED}", [])]


@pytest.mark.parametrize("adapter", [vllm, torchtitan, transformers, sglang])
def test_another_version_is_refused(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loudly: what it reads may mean something else there."""
    library = adapter.__name__.rpartition(".")[2]
    monkeypatch.setitem(sys.modules, library, SimpleNamespace(__version__="99.1"))
    with pytest.raises(UsageError, match=r"99\.1"):
        adapter.start(None, "")


ADAPTER = """
LIBRARY = "mylib.model"

def start(options, token):
    import mylib.model
    mylib.model.started += 1
"""


@pytest.mark.parametrize("rows", [(), ("all",)])
def test_an_adapter_of_your_own_is_found(
    rows: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By its entry point, or as a file, beside those that are here; all of them only where rows are recorded."""
    (tmp_path / "own.py").write_text(ADAPTER)
    own = metadata.EntryPoint("mylib", "my.adapter:start", parity.ADAPTERS)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [own] if group == parity.ADAPTERS else [])
    options: Any = SimpleNamespace(rows=rows, rerun=None, adapters=(str(tmp_path / "own.py"),))
    found = parity.EXTENSION.recorders(options)
    assert (found.get("mylib"), "vllm" in found) == (("my.adapter:start", True) if rows else (None, False))
    if rows:
        library = SimpleNamespace(started=0)
        monkeypatch.setitem(sys.modules, "mylib", SimpleNamespace(model=library))
        start = resolve_name(found["mylib.model"])
        start(options, "")
        assert library.started == 0  # the process has not imported it
        monkeypatch.setitem(sys.modules, "mylib.model", library)
        start(options, "")
        start(options, "")
        assert library.started == 1


@pytest.mark.parametrize("text", ["def start(", "x = 1", 'LIBRARY = "torch"', "LIBRARY = name()"])
def test_a_file_that_is_no_adapter_is_refused(tmp_path: Path, text: str) -> None:
    """Before the program starts; whether it names a library is known without running it."""
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(UsageError, match=r"own\.py (needs|cannot)"):
        parity.EXTENSION.recorders(RecordOptions("", rows=("all",), adapters=(str(tmp_path / "own.py"),)))
