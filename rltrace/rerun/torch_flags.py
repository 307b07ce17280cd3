"""Switches of torch that choose kernels: how to read and set each. Needs torch, nothing else.

Part of rltrace, and copied unchanged into every folder that ``rltrace repro`` writes. The names are those of the
settings of a row (``grad_mode``) and of the facts of a process (``flag.cudnn.benchmark``); ``tf32`` and ``sdp`` set
several switches. Environment variables, which libraries read when they are loaded, are not switches.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

ON_OFF = ("on", "off")
BACK_ENDS = ("flash", "mem_efficient", "math", "cudnn")
"""Back ends of ``scaled_dot_product_attention``."""


@dataclass(frozen=True)
class Switch:
    """One switch. ``read`` and ``set`` raise where this torch lacks it, or was built without it."""

    values: Sequence[str]
    """Valid values; empty: any."""
    read: Callable[[], Any]
    set: Callable[[Any], Any]
    """Takes a bool for on and off, else the text."""


def _on_off(read: Callable[[], Any], set: Callable[[bool], Any]) -> Switch:
    return Switch(ON_OFF, read, set)


def _precision(backend: str, op: str) -> Switch:
    """The precision flags of newer versions of torch, beside the old ones."""
    return Switch(
        ("ieee", "tf32", "bf16", "none"),
        lambda: torch._C._get_fp32_precision_getter(backend, op),
        lambda word: torch._C._set_fp32_precision_setter(backend, op, word),
    )


def _library(kind: str, *values: str) -> Switch:
    """A preferred library; torch returns a member of an enumeration."""

    def prefer(*library: str) -> Any:
        return getattr(torch.backends.cuda, f"preferred_{kind}_library")(*library)

    return Switch(values, lambda: str(prefer()).rpartition(".")[2].lower(), prefer)


def _of_torch(name: str) -> Switch:
    return _on_off(lambda: getattr(torch._C, f"_get_{name}")(), lambda on: getattr(torch._C, f"_set_{name}")(on))


def _tf32(on: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = on


def _one_back_end(back_end: str) -> None:
    for name in BACK_ENDS:
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(name == back_end)


def _back_end(name: str) -> Switch:
    cuda = torch.backends.cuda
    return _on_off(lambda: getattr(cuda, f"{name}_sdp_enabled")(), lambda on: getattr(cuda, f"enable_{name}_sdp")(on))


def _of_module(module: Any, name: str, values: Sequence[str] = ON_OFF) -> Switch:
    return Switch(values, lambda: getattr(module, name), lambda value: setattr(module, name, value))


def _deterministic(on: bool) -> None:
    torch.use_deterministic_algorithms(on, warn_only=torch.is_deterministic_algorithms_warn_only_enabled())


def _only_warn(on: bool) -> None:
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled(), warn_only=on)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _refuse(on: bool) -> None:
    if on is not torch.is_inference_mode_enabled():
        raise ValueError(f"{INFERENCE} is a context: set it with temporary_switches()")


SUBNORMAL = 5e-324
"""Equal to 0.0 in a thread that flushes denormal numbers to zero."""

INFERENCE = "inference_mode"

SWITCHES: Mapping[str, Switch] = {
    # of the thread
    INFERENCE: _on_off(torch.is_inference_mode_enabled, _refuse),
    "grad_mode": _on_off(torch.is_grad_enabled, torch._C._set_grad_enabled),
    "flush_denormal": _on_off(lambda: SUBNORMAL == 0.0, torch.set_flush_denormal),
    # of the process
    "default_dtype": Switch(
        ("float16", "bfloat16", "float32", "float64"),
        lambda: _name(torch.get_default_dtype()),
        lambda word: torch.set_default_dtype(getattr(torch, word)),
    ),
    "deterministic_warn_only": _on_off(torch.is_deterministic_algorithms_warn_only_enabled, _only_warn),
    "deterministic_algorithms": _on_off(torch.are_deterministic_algorithms_enabled, _deterministic),
    # switches of several before those of one
    "matmul_precision": Switch(
        ("highest", "high", "medium"), torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    ),
    "tf32": _on_off(lambda: torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32, _tf32),
    "cuda.matmul.tf32": _of_module(torch.backends.cuda.matmul, "allow_tf32"),
    "cuda.matmul.precision": _precision("cuda", "matmul"),
    "cuda.matmul.fp16_reduced": _of_module(torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    "cuda.matmul.bf16_reduced": _of_module(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    "cuda.matmul.fp16_accumulation": _of_module(torch.backends.cuda.matmul, "allow_fp16_accumulation"),
    "cuda.blas": _library("blas", "default", "cublas", "cublaslt", "ck"),
    "cuda.linalg": _library("linalg", "default", "cusolver", "magma"),
    "cudnn.enabled": _of_module(torch.backends.cudnn, "enabled"),
    "cudnn.benchmark": _of_module(torch.backends.cudnn, "benchmark"),
    "cudnn.deterministic": _of_module(torch.backends.cudnn, "deterministic"),
    "cudnn.tf32": _of_module(torch.backends.cudnn, "allow_tf32"),
    "cuda.conv.precision": _precision("cuda", "conv"),
    "cudnn.depthwise_kernel": _of_module(torch.backends.cudnn, "depthwise_kernel", ()),
    "mkldnn.enabled": _of_torch("mkldnn_enabled"),
    "mkldnn.deterministic": _of_torch("mkldnn_deterministic"),
    "mkldnn.matmul.precision": _precision("mkldnn", "matmul"),
    "mkldnn.conv.precision": _precision("mkldnn", "conv"),
    "sdp": Switch(BACK_ENDS, lambda: ",".join(n for n in BACK_ENDS if SWITCHES[f"sdp.{n}"].read()), _one_back_end),
    **{f"sdp.{name}": _back_end(name) for name in BACK_ENDS},
    "sdp.math_reduced": _of_torch("math_sdp_allow_fp16_bf16_reduction"),
}
"""In the order in which several are set."""

COMPONENTS = {
    "tf32": ("matmul_precision", "cuda.matmul.tf32", "cuda.matmul.precision", "cudnn.tf32", "cuda.conv.precision"),
    "sdp": ("sdp.flash", "sdp.mem_efficient", "sdp.math", "sdp.cudnn"),
}
"""Switches that set several others, and these."""


@contextmanager
def temporary_switches(settings: Mapping[str, Any]) -> Iterator[None]:
    """Set switches in the block, and restore them after it. Raises the errors of ``set_switches``."""
    others = {name: value for name, value in settings.items() if not is_set(name, value)}
    with ExitStack() as stack:
        if INFERENCE in others:
            stack.enter_context(torch.inference_mode(_value(INFERENCE, SWITCHES[INFERENCE], others.pop(INFERENCE))))
            others |= {name: settings[name] for name in ("grad_mode",) if name in settings}  # changed by inference mode
        stack.callback(set_switches, read_switches([part for name in others for part in COMPONENTS.get(name, (name,))]))
        set_switches(others)
        yield


def is_set(name: str, value: Any) -> bool:
    """Whether a switch has this value; True where this torch lacks a known switch."""
    found = read_switches([name])
    return name in SWITCHES and (name not in found or _word(found[name]) == _word(value))


def _word(value: Any) -> str:
    return "on" if value is True else "off" if value is False else str(value).lower()


def set_switches(settings: Mapping[str, Any]) -> None:
    """Set switches. Raises ValueError for an unknown name or value, and the errors of torch."""
    for name in (*SWITCHES, *settings):
        if name in settings:
            switch = SWITCHES.get(name)
            if switch is None:
                raise ValueError(f"torch has no switch {name} that is known here")
            switch.set(_value(name, switch, settings[name]))


def fits(name: str, value: Any) -> bool:
    """Whether this is a switch and a valid value of it."""
    try:
        _value(name, SWITCHES[name], value)
    except (KeyError, ValueError):
        return False
    return value is not None


def _value(name: str, switch: Switch, value: Any) -> Any:
    if switch.values == ON_OFF:
        word = _word(value)
        if word not in ON_OFF:
            raise ValueError(f"{name} is on or off, not {value}")
        return word == "on"
    word = _word(value)
    if switch.values and word not in switch.values:
        raise ValueError(f"{name} is one of {', '.join(switch.values)}, not {value}")
    return word


def read_switches(names: Sequence[str]) -> dict[str, Any]:
    """The values of these switches; one that cannot be read is left out."""
    found = {}
    for name in names:
        try:
            found[name] = SWITCHES[name].read()
        except (KeyError, AttributeError, RuntimeError):  # of a newer torch, or not in this build
            continue
    return found
