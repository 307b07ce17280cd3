"""The switches of torch that a script throws: each one acts, and stands as it was thrown."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch

from rltrace.rerun.torch_flags import ON_OFF, SWITCHES, fits, read_switches, set_switches, temporary_switches

CASES = [(name, value) for name, switch in SWITCHES.items() for value in switch.values]
UNKNOWN_HERE = ("not been compiled", "does not support precision")
"""What torch says of a library that it was built without, and of a precision that a back end does not have."""


@pytest.fixture(autouse=True)
def as_they_were() -> Iterator[None]:
    """Back to how they stood, after each."""
    names = [name for name in SWITCHES if name not in ("tf32", "sdp")]
    before = read_switches(names)
    yield
    for name, value in before.items():
        with suppress(RuntimeError):
            set_switches({name: value})


@pytest.mark.parametrize(("name", "value"), CASES)
def test_a_switch_stands_as_it_was_thrown(name: str, value: str) -> None:
    """Read back from torch, and put back when that is over; what this build of torch cannot do, it refuses."""
    before = read_switches([name])
    try:
        with temporary_switches({name: value}):
            stands = read_switches([name])[name]
    except RuntimeError as error:
        assert any(why in str(error) for why in UNKNOWN_HERE), error
        return
    assert read_switches([name]) == before
    if SWITCHES[name].values == ON_OFF:
        assert stands is (value == "on")
    elif value != "default":  # which is some library
        assert stands == value


def test_settings_of_a_row_are_put_together() -> None:
    """Inference mode turns grad mode off as it begins; what was recorded of grad mode holds all the same."""
    with temporary_switches({"grad_mode": True, "inference_mode": True, "flush_denormal": True}):
        assert read_switches(["inference_mode", "grad_mode", "flush_denormal"]) == dict.fromkeys(
            ("inference_mode", "grad_mode", "flush_denormal"), True
        )
    with torch.no_grad(), temporary_switches({"inference_mode": False, "grad_mode": True}):
        assert torch.is_grad_enabled()
    with torch.inference_mode(), temporary_switches({"inference_mode": False, "grad_mode": False}):
        assert (torch.is_inference_mode_enabled(), torch.is_grad_enabled()) == (False, False)
    assert read_switches(["inference_mode", "grad_mode", "flush_denormal"]) == {
        "inference_mode": False,
        "grad_mode": True,
        "flush_denormal": False,
    }


def test_what_fails_within_leaves_nothing_thrown() -> None:
    """Neither an op that raises nor a switch that torch refuses."""
    with pytest.raises(ZeroDivisionError), temporary_switches({"grad_mode": "off", "deterministic_algorithms": "on"}):
        raise ZeroDivisionError
    with (
        pytest.raises(ValueError, match="perhaps"),
        temporary_switches({"grad_mode": "off", "mkldnn.enabled": "perhaps"}),
    ):
        pass
    assert read_switches(["grad_mode", "deterministic_algorithms"]) == {
        "grad_mode": True,
        "deterministic_algorithms": False,
    }


def test_tf32_is_set_by_its_old_names_and_shown_by_the_new() -> None:
    """Products and convolutions at once; flags and precision agree, as torch wants it."""
    set_switches({"tf32": "on"})
    assert read_switches(["cuda.matmul.tf32", "cudnn.tf32", "matmul_precision"]) == {
        "cuda.matmul.tf32": True,
        "cudnn.tf32": True,
        "matmul_precision": "high",
    }
    set_switches({"tf32": "off"})
    assert read_switches(["cuda.matmul.tf32", "cudnn.tf32"]) == {"cuda.matmul.tf32": False, "cudnn.tf32": False}
    if hasattr(torch._C, "_get_fp32_precision_getter"):
        assert torch._C._get_fp32_precision_getter("cuda", "matmul") != "tf32"


def test_what_a_trace_says_of_them_can_be_thrown_back() -> None:
    """As facts have it: booleans, and libraries by the name that torch gives them."""
    set_switches({"cudnn.benchmark": True, "cuda.blas": "Cublas", "matmul_precision": "medium"})
    assert read_switches(["cudnn.benchmark", "cuda.blas"]) == {"cudnn.benchmark": True, "cuda.blas": "cublas"}
    assert fits("cudnn.benchmark", False) and fits("cuda.linalg", "Default")
    assert not fits("cuda.matmul.fp16_reduced", "(True, True)")  # of a trace that was recorded by an older version
    assert not fits("cudnn.depthwise_kernel", None) and not fits("nothing.known", True)


@pytest.mark.parametrize(("name", "value"), [("nothing.known", "on"), ("cudnn.enabled", "perhaps"), ("sdp", "all")])
def test_what_is_none_is_refused(name: str, value: str) -> None:
    """With what there is."""
    with pytest.raises(ValueError, match=name.partition(".")[0]):
        set_switches({name: value})
