# Two commands do everything: `make run` and `make test`.
#
# Variables: HTTP or PORT (where to serve), MODEL, PROMPT, ONCE=1 (end after the first answer), PYTHON, VENV,
# ARGS (more flags for `noria up`), TESTS (what pytest runs), TRACE (a request trace for verify-memory and verify-policy),
# WORKLOADS and RESULTS (folders of workload files and of results, for verify-speed),
# SEEDS (how many runs of `simulate`), CHAOS (flags of `chaos`).

VENV ?= .venv
PYTHON ?= python3.11 python3.12 python3.13 python3
PORT ?= 8000
HTTP ?= 127.0.0.1:$(PORT)
MODEL ?= smollm2
PROMPT ?= What is a water wheel? Answer in one sentence.
ONCE ?=
ARGS ?= --log-level warning
TESTS ?= tests
RESULTS ?= build/speed
SEEDS ?= 10000

BIN := $(VENV)/bin
# The development install includes the server's: when it is there, `make run` installs nothing more.
RUN_STAMP := $(if $(wildcard $(VENV)/.stamp-dev),$(VENV)/.stamp-dev,$(VENV)/.stamp-server)

KERNELS := services/executor/cpu/native/_kernels.so

export PROMPT
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help run test kernels lint format verify-stack verify-gpu verify-memory verify-policy verify-see verify-speed verify-survive simulate chaos clean
.NOTPARALLEL:
.DEFAULT_GOAL := help

help: ## Say what there is
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

run: $(RUN_STAMP) kernels ## Install, fetch the model, serve, and stream a first answer; Ctrl-C ends it
	@$(BIN)/noria models pull "$(MODEL)"
	@$(BIN)/noria up --model "$(MODEL)" --http "$(HTTP)" --prompt "$$PROMPT" $(if $(filter-out 0,$(ONCE)),--once) $(ARGS)

test: $(VENV)/.stamp-dev kernels lint ## Run all checks and tests
	$(BIN)/noria models pull smollm2
	$(BIN)/python -m pytest -m "not slow" $(TESTS)

kernels: $(KERNELS) ## Build the native kernels again when their sources changed

# The install builds them too. Without a C++ compiler everything works, in plain PyTorch.
$(KERNELS): $(wildcard services/executor/cpu/native/*.cpp services/executor/cpu/native/*.h) services/executor/cpu/native/build.py | $(RUN_STAMP)
	-@$(BIN)/python services/executor/cpu/native/build.py

lint: $(VENV)/.stamp-dev ## Check style, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.stamp-dev ## Put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

verify-stack: $(VENV)/.stamp-dev ## Run the long tests of the whole stack
	$(BIN)/noria models pull smollm2
	$(BIN)/python -m pytest -m slow --timeout 1800 tests/e2e tests/stack tests/executor/numerics/test_real_model.py

verify-memory: $(VENV)/.stamp-dev ## Run the long tests of the cache; TRACE=FILE replays a trace too
	$(BIN)/noria models pull smollm2
	$(BIN)/noria models pull gemma3-270m
	$(BIN)/python -m pytest -m slow --timeout 1800 tests/executor/numerics/test_cache_memory.py tests/executor/numerics/test_crowded_cache.py tests/executor/numerics/test_gemma.py
	$(BIN)/python benchmarks/cache_dtypes.py
	$(if $(TRACE),$(BIN)/python benchmarks/mooncake.py "$(TRACE)")

verify-gpu: $(VENV)/.stamp-dev ## Run the pipeline from many seeds, then check a GPU in less than eight minutes; writes build/gpu.json
	@mkdir -p build
	$(BIN)/python -m pytest -m slow --timeout 1800 tests/executor/cuda/test_pipeline.py tests/executor/numerics/test_device_compiling.py
	$(BIN)/python -m pytest --timeout 1800 --rounds 10 tests/executor/numerics/test_device_sampling.py
	PYTHONPATH=tests $(BIN)/python benchmarks/gpu_check.py --out build/gpu.json

verify-survive: $(VENV)/.stamp-dev kernels ## Run the long tests of what is killed, hangs or fails, of wrong input, and of 100,000 requests
	$(BIN)/python -m pytest --timeout 3600 tests/e2e/test_fuzz.py --rounds 20 --seed 1
	$(BIN)/python -m pytest --timeout 3600 tests/e2e/test_fuzz.py --rounds 20 --seed 2
	$(BIN)/python -m pytest --timeout 1800 tests/e2e/test_gateway_death.py tests/e2e/test_backpressure.py
	$(BIN)/python -m pytest --timeout 1800 -m "slow or not slow" tests/stack/test_compose.py
	PYTHONPATH=tests $(BIN)/python benchmarks/flatness.py
	PYTHONPATH=tests $(BIN)/python -m chaos --blows 100
	PYTHONPATH=tests $(BIN)/python -m chaos --streams 256 --http 0 --alone --victims scheduler detokenizer admission --blows 9 --gap 4 6
	PYTHONPATH=tests $(BIN)/python -m fakes.simulated --seeds $(SEEDS)

verify-policy: $(VENV)/.stamp-dev ## Measure what policies do; TRACE=FILE replays a trace of arrivals
	$(BIN)/noria models pull smollm2
	$(BIN)/python -m pytest -m slow --timeout 1800 tests/e2e/test_cancels.py
	$(BIN)/python benchmarks/flood.py --repeats 3 -- --threads 1
	$(BIN)/python benchmarks/deadlines.py
	$(if $(TRACE),$(BIN)/python benchmarks/azure.py "$(TRACE)")

verify-see: $(VENV)/.stamp-dev kernels ## Look at the console in Chromium, scrape with Prometheus, kill while scraping, measure what watching costs
	@command -v chromium >/dev/null && command -v prometheus >/dev/null || echo "make: without chromium and prometheus (apt install chromium prometheus) their tests are skipped" >&2
	$(BIN)/noria models pull smollm2
	$(BIN)/python -m pytest --timeout 600 tests/e2e/test_console.py tests/stack/test_observability.py tests/e2e/test_traces.py tests/e2e/test_recovered_traces.py tests/e2e/test_conservation.py
	$(BIN)/python benchmarks/watching.py

verify-speed: $(VENV)/.stamp-dev ## Install other engines, compare all side by side, measure int8; WORKLOADS=FOLDER
	@test -d "$(WORKLOADS)" || { echo "make: name the folder of the workload files: WORKLOADS=..." >&2; exit 1; }
	$(BIN)/noria models pull smollm2
	$(BIN)/python benchmarks/peers/install.py
	$(BIN)/python benchmarks/peers/run.py --workloads "$(WORKLOADS)" --out "$(RESULTS)"
	$(BIN)/python benchmarks/peers/quality.py | tee "$(RESULTS)/quality.txt"

simulate: $(VENV)/.stamp-dev ## Run the whole stack in one process from SEEDS seeds, with faults
	PYTHONPATH=tests $(BIN)/python -m fakes.simulated --seeds $(SEEDS)

chaos: $(VENV)/.stamp-dev kernels ## Kill a stack's processes under load and see that every answer comes whole; CHAOS="--help"
	PYTHONPATH=tests $(BIN)/python -m chaos $(CHAOS)

clean: ## Remove the install and what tools left behind
	rm -rf $(VENV) build dist noria.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The first Python of the list that runs and is new enough makes the environment.
$(VENV)/.stamp-%: pyproject.toml
	@test -x $(BIN)/python || for python in $(PYTHON) none; do \
	  test $$python != none || { echo "make: Python 3.11 or newer is needed, found none ($(PYTHON)); name one with PYTHON=..." >&2; exit 1; }; \
	  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	  $$python -m venv $(VENV) || exit 1; break; \
	done
	@echo "installing noria[$*] into $(VENV) (the first time, this takes some minutes)"
	@$(BIN)/python -m pip install --quiet -e '.[$*]'
	@touch $@
