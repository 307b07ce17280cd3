"""Operators that PyTorch documents as nondeterministic, and the settings that make them deterministic.

The table is from the documentation of ``torch.use_deterministic_algorithms`` in PyTorch 2.13 (read on 2026-11-21;
modules and functions there, their operators here) and of its recurrent layers, from the backward passes of attention
(which check that setting), and from CPU operators that were measured to be nondeterministic on several threads
(docs/internals/findings.md), those of pytorch#188792 among them. It is advice and never decides a cause. torch itself
does not know more: no ATen operator carries ``torch.Tag.nondeterministic_bitwise`` in 2.13. ``rltrace explain`` runs
an op to see what makes it repeat.
"""

from dataclasses import dataclass

from rltrace.diff.base.model import OF_COMPUTING, Cause, Finding

CPU, CUDA = "cpu", "cuda"
ONE_THREAD = "1 thread"

SETTING = "torch.use_deterministic_algorithms(True)"


@dataclass(frozen=True)
class NondeterminismTable:
    """What is known about some operators on some devices."""

    devices: tuple[str, ...]
    why: str
    """A clause: why two calls may differ."""
    has_form: bool
    """Whether it has a deterministic form, which the setting selects; else the setting makes it raise an error."""
    how: str = ""
    """Another way to make it deterministic, where the setting does not."""
    causes: frozenset[Cause] = OF_COMPUTING
    """The causes of a difference that it may explain."""


_ATOMICS = "it sums with atomic operations, in the order in which GPU threads arrive"
_THREADS = "with accumulate=True its threads sum in the order in which they arrive"
_DUPLICATES = "where an index occurs twice, the last thread wins"
_FIRST_CALL = (
    "MKL before 2025.0 chooses a vector function's code in its first call in a process, and threads that make that "
    "call at once may get values of low precision (pytorch#188792)"
)
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
_known(
    NondeterminismTable(
        (CPU,),
        _FIRST_CALL,
        False,
        "a call of it with one element of that dtype, before all others, makes it deterministic",
        frozenset((Cause.SAME_KERNEL, Cause.COMPUTATION)),
    ),
    "acos", "asin", "atan", "cos", "erf", "erfc", "erfinv", "exp", "log", "log10", "log2", "sin", "sqrt", "tan", "tanh",
)  # fmt: skip
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
    """The entry of an operator (``aten.index_put_.default``) on a kind of device; None: there is none."""
    parts = op.split(".")
    if len(parts) < 2 or parts[0] != "aten":
        return None
    return next((known for known in TABLE.get(parts[1].removesuffix("_"), ()) if device in known.devices), None)


def advice_text(finding: Finding) -> str | None:
    """A sentence on the op of a finding, where its nondeterminism may be the cause; None: it is not known to be
    nondeterministic, or it ran on one thread both times.
    """
    if finding.op is None:
        return None
    kernels = [text for text in (finding.kernel.a, finding.kernel.b) if text]
    device = CPU if all(text.endswith(("thread", "threads")) for text in kernels) else CUDA
    if device == CPU and kernels and all(text.endswith(ONE_THREAD) for text in kernels):
        return None
    known = known_of(finding.op, device)
    if known is None or finding.cause not in known.causes:
        return None
    return f"PyTorch does not guarantee that {finding.op} is deterministic: {known.why}; {remedy_text(known, device)}"


def remedy_text(known: NondeterminismTable, device: str) -> str:
    """A clause on what makes such an operator deterministic."""
    form = known.how or (
        f"{SETTING} chooses a deterministic form, which is slower"
        if known.has_form
        else f"it has no deterministic form, so {SETTING} raises an error"
    )
    return form + ("; so does one thread (OMP_NUM_THREADS=1)" if device == CPU else "")
