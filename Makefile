# Each target does all of its own set-up on a machine with Python 3.11 or newer and make.
#   make demo       train on generated data, two minutes on two cores
#   make test       lint, types, the documents and the tests; what continuous integration runs
#   make test-slow  the tests on real data and of many minutes
#   make test-loggers  docs/examples/log_run.py with the packages it writes to, which it installs
#   make test-ucx   the tests of cluster and transport over ucx, in an environment of its own
#   make test-cuda  the tests of the GPU kernels with CuPy, in an environment of its own, and on a GPU
#                   if there is one; CUDA=13 for the other CUDA
#   make docs       the site of documents, in build/docs
#   make results-check  whether numbers in the documents are those of the results; RELEASE=1: and
#                   the results those of today's code
#   make results    measure again what is older than its code, or NAMES="..."; DATA=FOLDER has the
#                   real sets
#   make bench      the speed of each part, by every benchmark that needs no data
#   make simulate-faults  N runs of the cluster's code under simulated faults, from SEED on
#   make lock       pin the packages of the Docker images and of the tests anew
#   make supply     the wheel, built twice; a bill of materials and the licences of the image

PYTHON ?= python3
VENV ?= .venv
# Files of tests at a time: three more than cores, as many tests wait for clusters of their own.
JOBS ?= 5
BIN := $(VENV)/bin
CORE := $(VENV)/.core
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
UCX_VENV ?= .venv-ucx
UCX_READY := $(UCX_VENV)/.ready
CUDA ?= 12
N ?= 1000
DATA ?= data
SEED ?= 0
CUDA_VENV ?= .venv-cuda
CUDA_READY := $(CUDA_VENV)/.ready-$(CUDA)

# Hundreds of short processes import the same modules: without bytecode each compiles them again.
unexport PYTHONDONTWRITEBYTECODE

# Editable installations compile kernels at their first use, and a wheel for others has none.
export DASKXML_KERNELS := 0

.DEFAULT_GOAL := help
KERNELS := kernels-networks kernels-samples kernels-trees

.PHONY: help setup demo test lint types results results-check kernels $(KERNELS) bytecode unit test-slow test-loggers test-ucx test-cuda simulate-faults docs bench lock supply format clean

help:
	@sed -n 's/^#   //p' Makefile

setup: $(READY)

# A stamp is newer than pyproject.toml exactly when the packages it asks for are installed: first
# those that kernels need, which are compiled while all others are being installed. The pip of an
# older Python takes twice as long for that as a current one.
$(CORE): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "daskxml needs Python 3.11 or newer; try make PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	@$(BIN)/python -c 'import tomllib; from pathlib import Path; \
	  project = tomllib.loads(Path("pyproject.toml").read_text())["project"]; \
	  print(*project["dependencies"], sep="\n")' >$(VENV)/core.txt
	$(PIP) -r $(VENV)/core.txt
	@touch $@

$(READY): $(CORE)
	$(PIP) -e '.[test]'
	@touch $@

demo: $(READY)
	$(BIN)/python docs/examples/generate.py build/demo/train.txt build/demo/test.txt
	$(BIN)/daskxml train adaptive-sgd --train build/demo/train.txt --test build/demo/test.txt \
	  --workers 2 --set training.epochs=8 --set evaluation.every=1

# Five jobs: pip waits for downloads, and what ends last should not be alone with one core.
test:
	$(MAKE) --jobs 5 kernels bytecode $(KERNELS) lint types results-check
	$(MAKE) unit

# Compiled once, on both cores; else several tests at a time compile the same.
kernels: $(CORE)
	PYTHONPATH=tests $(BIN)/python -m harness.warm_worker

$(KERNELS): kernels-%: kernels
	PYTHONPATH=tests $(BIN)/python -m harness.compile_kernels $*

# That of all tests and of what they import; else each process of `unit` compiles the same.
bytecode: $(READY)
	-@$(BIN)/python -m pytest -q --collect-only >/dev/null

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

results-check: $(READY)
	$(BIN)/python tools/results.py check $(if $(RELEASE),--release)

results: $(READY)
	$(BIN)/python tools/results.py run --data $(DATA) $(NAMES)

unit: $(READY)
	$(BIN)/python -m pytest -q -m "not slow" --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder \
	  --reruns 1

test-slow: $(READY)
	$(BIN)/python -m pytest -q -m slow

test-loggers: $(READY)
	$(PIP) -e '.[loggers]'
	$(BIN)/python -m pytest -q tests/observe/test_log_run.py

$(UCX_READY): pyproject.toml
	$(PYTHON) -m venv $(UCX_VENV)
	$(UCX_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[test,ucx]'
	@touch $@

test-ucx: $(UCX_READY)
	$(UCX_VENV)/bin/python tools/ucx_suite.py

$(CUDA_READY): pyproject.toml
	rm -rf $(CUDA_VENV)
	$(PYTHON) -m venv $(CUDA_VENV)
	$(CUDA_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[test,cuda$(CUDA)]'
	@touch $@

test-cuda: $(CUDA_READY)
	$(CUDA_VENV)/bin/python -m pytest -q tests/kernels tests/worker/test_cuda_replica.py \
	  tests/benchmarks/test_gpu_check.py tests/cluster/test_gpu_cluster.py

simulate-faults: $(READY)
	PYTHONPATH=tests $(BIN)/python benchmarks/quality/simulated_faults.py $(N) --seed $(SEED)

docs: $(READY)
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going docs build/docs
	@echo "the site begins at build/docs/index.html"

bench: $(READY)
	$(BIN)/python benchmarks/speed/step.py
	$(BIN)/python benchmarks/speed/step.py --pool
	$(BIN)/python benchmarks/speed/parser.py
	$(BIN)/python benchmarks/speed/dispatch.py
	$(BIN)/python benchmarks/speed/allreduce.py --mib 1 16 128 --workers 2 3 --rounds 5

# For every Python that the package runs on, with hashes, and without the name of an index.
LOCK := uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
  --no-header --no-emit-index-url --no-annotate
# The images, and what is tested beside: an image's name, then the extras that are in it.
LOCKS := cpu=cluster,serve cuda12=serve,cuda12 cuda13=serve,cuda13 extras=test,bench,loggers

lock: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	set -e; for each in $(LOCKS); do lock=docker/$${each%%=*}.lock; extras=$${each#*=}; \
	  { echo "# Made by \`make lock\`: daskxml[$$extras]."; \
	    $(BIN)/$(LOCK) $$(printf -- ' --extra %s' $$(echo $$extras | tr , ' ')) pyproject.toml; } \
	  > $$lock.new; mv $$lock.new $$lock; done
	{ echo '# Made by `make lock`: what builds the wheel in the image.'; \
	  echo 'hatchling>=1.27' | $(BIN)/$(LOCK) -; } > docker/build.lock.new
	mv docker/build.lock.new docker/build.lock

# In build/supply: the wheel, which two builds make of the same bytes; and of all that is in the CPU
# image a bill of materials (CycloneDX) and the licences.
supply: $(READY)
	rm -rf build/supply && $(PYTHON) -m venv build/supply/venv
	build/supply/venv/bin/python -m pip install --quiet --require-hashes -r docker/cpu.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build cyclonedx-bom pip-licenses
	$(BIN)/python -m build --wheel --outdir build/supply >build/supply/build.log
	$(BIN)/python -m build --wheel --outdir build/supply/again >build/supply/build.log
	cmp build/supply/*.whl build/supply/again/*.whl
	build/supply/venv/bin/python -m pip install --quiet --no-deps build/supply/*.whl
	$(BIN)/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml \
	  --output-file build/supply/bom.json build/supply/venv
	$(BIN)/pip-licenses --python=build/supply/venv/bin/python --format=markdown --order=license \
	  --with-urls --output-file=build/supply/licences.md

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(UCX_VENV) $(CUDA_VENV) build dist .mypy_cache .pytest_cache .ruff_cache
