"""What PyTorch says of an op: that it need not repeat itself, and what setting makes it.

Owns a table of operators, from the documentation of ``torch.use_deterministic_algorithms`` in PyTorch 2.13 (read on
2026-11-21; modules and functions there, the operators that they run here) and of its recurrent layers, of attention's
backward passes (which ask for that setting themselves), and of CPU operators that were measured not to repeat
themselves on several threads (docs/internals/findings.md). It is advice, no cause: a verdict never rests on it. The
running torch cannot be asked for more: no operator of ATen carries ``torch.Tag.nondeterministic_bitwise`` in 2.13.
Whether an op has a deterministic form ``rltrace explain`` asks it, by running the op so.
"""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.diff.base.model import Cause, Finding

CPU, CUDA = "cpu", "cuda"
ONE_THREAD = "1 thread"

SETTING = "torch.use_deterministic_algorithms(True)"


@dataclass(frozen=True)
class NondeterminismTable:
    """What is known of some operators on some devices."""

    devices: tuple[str, ...]
    why: str
    """A clause: why two calls need not agree."""
    has_form: bool
    """Whether it has a deterministic form, which the setting chooses; else the setting makes it raise an error."""
    how: str = ""
    """What else to set, where the setting is not it."""


_ATOMICS = "it sums with atomic operations, in the order in which GPU threads arrive"
_THREADS = "with accumulate=True its threads sum in the order in which they arrive"
_DUPLICATES = "where an index occurs twice, the last thread wins"
_CHOICE = "cuDNN may choose another algorithm from call to call, and some of them sum with atomic operations"

TABLE: dict[str, tuple[NondeterminismTable, ...]] = {}


def _known(known: NondeterminismTable, *operators: str) -> None:
    for name in operators:
        TABLE[name] = (*TABLE.get(name, ()), known)


_known(NondeterminismTable((CPU,), _THREADS, True), "index_put", "_index_put_impl", "_unsafe_index_put", "put")
_known(
    NondeterminismTable((CUDA,), _DUPLICATES, True),
    "index_put",
    "_index_put_impl",
    "_unsafe_index_put",
    "index_copy",
    "scatter",
)
_known(NondeterminismTable((CPU,), _DUPLICATES, True), "index_copy")
_known(NondeterminismTable((CUDA,), _CHOICE, True), "convolution", "cudnn_convolution", "cudnn_convolution_transpose")
_known(NondeterminismTable((CUDA,), _CHOICE, True), "convolution_backward")
_known(
    NondeterminismTable((CUDA,), _ATOMICS, True),
    "scatter_add", "index_add", "scatter_reduce", "embedding_dense_backward", "index_select_backward",
    "replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward",
    "max_pool3d_with_indices_backward", "repeat_interleave_backward",
)  # fmt: skip
_known(
    NondeterminismTable((CUDA,), _ATOMICS, False),
    "avg_pool3d_backward", "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward",
    "adaptive_max_pool2d_backward", "fractional_max_pool2d_backward", "fractional_max_pool3d_backward",
    "upsample_linear1d_backward", "upsample_bilinear2d_backward", "upsample_bicubic2d_backward",
    "upsample_trilinear3d_backward", "reflection_pad1d_backward", "reflection_pad2d_backward",
    "reflection_pad3d_backward", "nll_loss2d_forward", "_ctc_loss_backward", "grid_sampler_2d_backward",
    "grid_sampler_3d_backward", "histc", "bincount", "put", "_embedding_bag_dense_backward",
)  # fmt: skip
_known(
    NondeterminismTable((CUDA,), "the gradients of its inputs are summed with atomic operations", True),
    "_scaled_dot_product_flash_attention_backward", "_flash_attention_backward",
    "_scaled_dot_product_efficient_attention_backward", "_efficient_attention_backward",
    "_scaled_dot_product_cudnn_attention_backward", "_cudnn_attention_backward",
)  # fmt: skip
_known(
    NondeterminismTable(
        (CUDA,),
        "recurrent layers are nondeterministic in some versions of cuDNN and CUDA",
        True,
        "CUBLAS_WORKSPACE_CONFIG=:4096:2 makes it deterministic, for 8 MiB of device memory",
    ),
    "_cudnn_rnn", "_cudnn_rnn_backward",
)  # fmt: skip
_known(NondeterminismTable((CUDA,), "the order in which blocks are summed is not fixed", False), "cumsum")
_known(NondeterminismTable((CUDA,), "of several equal numbers any index may be returned", False), "median")
_known(NondeterminismTable((CPU, CUDA), _DUPLICATES, False), "max_unpool2d", "max_unpool3d")


def known_of(op: str, device: str) -> NondeterminismTable | None:
    """What is known of an operator (``aten.index_put_.default``) on a kind of device; None: nothing."""
    parts = op.split(".")
    if len(parts) < 2 or parts[0] != "aten":
        return None
    return next((known for known in TABLE.get(parts[1].removesuffix("_"), ()) if device in known.devices), None)


def advice_text(finding: Finding) -> str | None:
    """A sentence on the op of a finding that may rest on its not repeating itself; None: nothing is known, or it ran on
    one thread both times.
    """
    if finding.op is None or finding.cause not in (Cause.KERNEL, Cause.SAME_KERNEL, Cause.COMPUTATION):
        return None
    kernels = [text for text in (finding.kernel.a, finding.kernel.b) if text]
    device = CPU if all(text.endswith(("thread", "threads")) for text in kernels) else CUDA
    if device == CPU and kernels and all(text.endswith(ONE_THREAD) for text in kernels):
        return None
    known = known_of(finding.op, device)
    if known is None:
        return None
    form = known.how or (
        f"{SETTING} chooses a deterministic form, which is slower"
        if known.has_form
        else f"it has no deterministic form, so {SETTING} raises an error"
    )
    threads = "; so does one thread (OMP_NUM_THREADS=1)" if device == CPU else ""
    return f"PyTorch does not guarantee that {finding.op} is deterministic: {known.why}; {form}{threads}"
