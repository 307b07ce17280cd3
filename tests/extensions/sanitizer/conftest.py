"""Operators that do not repeat themselves; recording in this process."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

TORCH = Path(torch.__file__).parent


@pytest.fixture(scope="session")
def toy_ops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of ``toy_ops.cpp``, loaded in this process."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    library = tmp_path_factory.mktemp("toy") / "toy_ops.so"
    source = Path(__file__).with_name("toy_ops.cpp")
    options = ["-O1", "-std=c++17", "-shared", "-fPIC", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
    paths = [f"-I{TORCH / 'include'}", f"-L{TORCH / 'lib'}", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10"]
    subprocess.run([compiler, *options, source, *paths, "-o", library], check=True)
    torch.ops.load_library(library)
    return library
