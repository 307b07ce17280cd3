"""Places of the trainers' Qwen3 computed by vLLM's own CPU kernels: rope, attention, and the norm of an unrounded sum.

Forward by the kernel, backward by torch's formula. With all three, trainer and generator compute the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import transformers.models.qwen3.modeling_qwen3 as qwen3
import vllm.platforms
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

vllm.platforms.current_platform.import_kernels()
torch.cpu._init_amx()
from vllm import _custom_ops as ops  # noqa: E402
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa  # noqa: E402

BLOCK = 128


class Same(torch.autograd.Function):
    """Forward: ``kernel(*args)``; backward: that of ``formula(*args)``."""

    @staticmethod
    def forward(ctx: Any, kernel: Callable[..., Any], formula: Callable[..., Any], *args: Any) -> Any:
        ctx.formula, ctx.args = formula, args
        return kernel(*args)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        with torch.enable_grad():
            args = [
                arg.detach().requires_grad_(arg.is_floating_point()) if isinstance(arg, Tensor) else arg
                for arg in ctx.args
            ]
            out = ctx.formula(*args)
            needed = [arg for arg in args if isinstance(arg, Tensor) and arg.requires_grad]
            found = torch.autograd.grad(out if isinstance(out, tuple) else (out,), needed, grads, allow_unused=True)
        by_id = dict(zip(map(id, needed), found, strict=True))
        return None, None, *(by_id.get(id(arg)) for arg in args)


def _by_token(x: Tensor) -> Tensor:
    """[batch, heads, tokens, size] to [batch x tokens, heads, size]."""
    return x.transpose(1, 2).reshape(-1, x.shape[1], x.shape[3])


def _rope_kernel(q: Tensor, k: Tensor, positions: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    flat_q, flat_k = q.reshape(len(q), -1).clone(), k.reshape(len(k), -1).clone()
    ops.rotary_embedding(positions, flat_q, flat_k, q.shape[-1], table, True)
    return flat_q.view(q.shape), flat_k.view(k.shape)


def _rope_formula(q: Tensor, k: Tensor, positions: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = (torch.cat([part, part], -1)[:, None] for part in table[positions].chunk(2, -1))
    return tuple(x * cos + qwen3.rotate_half(x) * sin for x in (q, k))  # type: ignore[return-value]


def rope_is_exact(dtype: torch.dtype) -> bool:
    """Whether vLLM's kernel rounds as the formula does, which depends on the processor."""
    q, k, angles = torch.rand(64, 4, 32), torch.rand(64, 2, 32), torch.rand(64, 16) * 6
    args = q.to(dtype), k.to(dtype), torch.arange(64), torch.cat([angles.cos(), angles.sin()], -1).to(dtype)
    return all(map(torch.equal, _rope_kernel(*args), _rope_formula(*args)))


def _rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    batch, _heads, tokens, size = q.shape
    table = torch.cat([cos[..., : size // 2], sin[..., : size // 2]], -1).expand(batch, tokens, size)
    args = _by_token(q), _by_token(k), torch.arange(batch * tokens), table.reshape(-1, size).contiguous()
    made = Same.apply(_rope_kernel, _rope_formula, *args)
    return tuple(x.view(batch, tokens, -1, size).transpose(1, 2) for x in made)  # type: ignore[return-value]


def _attention_kernel(q: Tensor, k: Tensor, v: Tensor, cuts: Tensor, scale: float) -> Tensor:
    lengths = (cuts[1:] - cuts[:-1]).to(torch.int32)
    count, heads, size = len(lengths), k.shape[1], q.shape[2]
    blocks = -(-int(lengths.max()) // BLOCK)
    cache = torch.zeros(count * blocks, heads, BLOCK * 2, size, dtype=q.dtype)
    keys, values = cache.chunk(2, dim=2)
    table = torch.arange(count * blocks, dtype=torch.int32).view(count, blocks)
    slots = torch.cat([i * blocks * BLOCK + torch.arange(int(n)) for i, n in enumerate(lengths)])
    isa, starts = _get_attn_isa(q.dtype, BLOCK, size), cuts.to(torch.int32)
    ops.cpu_attn_reshape_and_cache(k.contiguous(), v.contiguous(), keys, values, slots, isa)
    plan = ops.cpu_attn_get_scheduler_metadata(
        count, q.shape[1], heads, size, lengths, q.dtype, starts, True, -1, isa, True
    )
    out = torch.empty_like(q.contiguous())
    ops.cpu_attention_with_kv_cache(
        q.contiguous(), keys, values, out, starts, lengths, scale, True, None, -1, table, 0.0, plan, None
    )
    return out


def _attention_formula(q: Tensor, k: Tensor, v: Tensor, cuts: Tensor, scale: float) -> Tensor:
    found = []
    for begin, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        own = (x[begin:end].transpose(0, 1)[None] for x in (q, k, v))
        made = functional.scaled_dot_product_attention(*own, scale=scale, is_causal=True, enable_gqa=True)
        found.append(made[0].transpose(0, 1))
    return torch.cat(found)


def _attention(
    module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    batch, heads, tokens, size = q.shape
    cuts = torch.arange(0, batch * tokens + 1, tokens)  # padding is on the right: it changes no token before it
    made = Same.apply(_attention_kernel, _attention_formula, *map(_by_token, (q, k, v)), cuts, scaling)
    return made.view(batch, tokens, heads, size), None


def _add(a: Tensor, b: Tensor) -> Tensor:
    whole = a.float() + b.float()
    rounded = whole.to(a.dtype)
    rounded._unrounded = whole  # type: ignore[attr-defined]
    return rounded


def _patch_norm() -> None:
    plain = qwen3.Qwen3RMSNorm.forward

    def norm(self: Any, hidden_states: Tensor) -> Tensor:
        whole = getattr(hidden_states, "_unrounded", None)
        if whole is None:
            return plain(self, hidden_states)
        made = whole * torch.rsqrt(whole.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        out: Tensor = made.to(hidden_states.dtype) * self.weight
        return out

    def layer(self: Any, hidden_states: Tensor, **more: Any) -> Tensor:
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **more)
        added = _add(attended, hidden_states)
        return _add(self.mlp(self.post_attention_layernorm(added)), added)

    qwen3.Qwen3RMSNorm.forward, qwen3.Qwen3DecoderLayer.forward = norm, layer


def apply_to_titan(model: Any, places: set[str]) -> None:
    """The same of TorchTitan's Qwen3."""
    sums = SimpleNamespace(last=None)
    for layer in model.layers.values():
        if "rope" in places:
            layer.attention.rope.forward = _titan_rope(layer.attention.rope)
        if "attn" in places:
            layer.attention.inner_attention.forward = _titan_attention
        if "norm" in places:
            layer.forward = _titan_layer(layer, sums)
            layer.attention_norm.forward = _titan_norm(layer.attention_norm, sums)
            layer.ffn_norm.forward = _titan_norm(layer.ffn_norm, sums)
    if "norm" in places:
        model.norm.forward = _titan_norm(model.norm, sums)


def _titan_rope(rope: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    def forward(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        half = q.shape[-1] // 2
        table = torch.cat([part[:, :half] for part in rope.cache.chunk(2, -1)], -1).to(q.dtype).contiguous()
        made = Same.apply(_rope_kernel, _rope_formula, q.flatten(0, 1), k.flatten(0, 1), positions.reshape(-1), table)
        return made[0].view(q.shape), made[1].view(k.shape)

    return forward


def _titan_attention(q: Tensor, k: Tensor, v: Tensor, *, attention_masks: Any, scale: float, **_: Any) -> Tensor:
    flat = (x.flatten(0, 1) for x in (q, k, v))
    cuts = attention_masks.cu_seq_q.long()
    made: Tensor = Same.apply(_attention_kernel, _attention_formula, *flat, cuts, scale)
    return made.view(q.shape)


def _titan_layer(layer: Any, sums: SimpleNamespace) -> Callable[..., Tensor]:
    def add(a: Tensor, b: Tensor) -> Tensor:
        whole = a.float() + b.float()
        sums.last = whole.detach()
        return whole.to(a.dtype)

    def forward(x: Tensor, attention_masks: Any, positions: Tensor) -> Tensor:
        x = add(layer.attention(layer.attention_norm(x), attention_masks, positions), x)
        return add(layer.feed_forward(layer.ffn_norm(x)), x)

    return forward


def _titan_norm(norm: Any, sums: SimpleNamespace) -> Callable[[Tensor], Tensor]:
    def plain(x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, norm.normalized_shape, weight, norm.eps)

    def forward(x: Tensor) -> Tensor:
        whole = sums.last
        if whole is None or whole.shape != x.shape or not torch.equal(whole.to(x.dtype), x):
            return plain(x, norm.weight)
        made: Tensor = Same.apply(
            lambda x, weight: _norm_kernel(whole, weight, norm.eps, x.dtype), plain, x, norm.weight
        )
        return made

    return forward


def _norm_kernel(whole: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    return (whole * torch.rsqrt(whole.pow(2).mean(-1, keepdim=True) + eps)).to(dtype) * weight


def apply(model: Any, places: set[str]) -> None:
    """``places``: of rope, attn, norm."""
    if "rope" in places:
        qwen3.apply_rotary_pos_emb = _rope
    if "attn" in places:
        AttentionInterface.register("vllm_cpu", _attention)
        model.config._attn_implementation = "vllm_cpu"
    if "norm" in places:
        _patch_norm()
