"""Random selectors, and the tables of a trace in which they find something."""

from typing import Any

from hypothesis import strategies as st

ENTRIES = 4

PAYLOADS: dict[str, Any] = {
    "ops": ["aten.mm.default", "aten.add.Tensor", "aten.add_.Tensor", "mylib.attention.default"],
    "modules": ["", "policy", "policy.net.0", "value.net.0"],
    "frames": [
        {"file": "agents/ppo.py", "line": 3, "function": "PPO.train", "source": ""},
        {"file": "torch/nn/linear.py", "line": 9, "function": "forward", "source": "", "internal": True},
        {"file": "train.py", "line": 4, "function": "main", "source": ""},
    ],
    "sites": [[], [0, 2], [1, 0], [2]],
    "kernels": [{}, {"library": "MKL", "threads": 2}, {"names": ["void gemm(int)", "relu"]}, {"library": "ATen"}],
}

CONDITIONS = {
    "op": ["add", "aten.add*", "*m*", "mylib.attention", "environment-step", "*"],
    "module": ["policy.*", "[!p]*"],
    "site": ["ppo.py", "train.py:main", "*:train"],
    "kernel": ["*gemm*", "MKL*"],
    "phase": ["backward", "f*"],
    "stream": ["rank0/*", "x"],
    "step": ["2", "1:3", "3:"],
    "nth": ["0", "1:", ":2"],
}
CONDITION = st.sampled_from([f"{key}={value}" for key, values in CONDITIONS.items() for value in values])
SELECTORS = st.lists(st.lists(CONDITION, min_size=1, max_size=3).map(",".join) | st.just("all"), max_size=3)
