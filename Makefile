# `make demo` and `make test` set everything up by themselves; `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin
SOURCES := pyproject.toml CMakeLists.txt $(wildcard src/dctps/ops/native/cpp/*)

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-kills test-plain check check-native format lint types help-pages docs bench federated clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "dctps needs Python 3.11 or newer; set PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH)

$(VENV)/.demo: $(SOURCES) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	@touch $@

$(VENV)/.dev: $(SOURCES) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo  ## install, then train and compare on the digits: about four minutes in all
	$(BIN)/dctps demo

test: $(VENV)/.dev  ## all tests but the slow ones
	$(BIN)/python -m pytest --quiet -n auto -m 'not slow'

test-slow: $(VENV)/.dev  ## large networks, and the property tests with ten times as many examples, newly drawn: many minutes
	$(BIN)/python -m pytest --quiet -m slow
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest --quiet -m hypothesis

test-kills: $(VENV)/.dev  ## 30 kills of each of twelve kinds of runs, which go on and end bit-equal: about half an hour
	$(BIN)/python -m pytest --quiet -rP tests/test_kills.py tests/test_finetune_command.py::TestKills

# An environment of its own that borrows all other packages from the first one; $(1): variables, $(2): options of pip
define install_beside
	$(PYTHON) -m venv --clear --without-pip $@
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' > $$(echo $@/lib/python*/site-packages)/borrowed.pth
	$(1) $(BIN)/python -m pip --python $@/bin/python install --quiet --no-deps $(2) .
endef

build/plain: $(SOURCES) src | $(VENV)/.dev
	$(call install_beside,DCTPS_NATIVE=0,)

build/sanitized: $(SOURCES) src | $(VENV)/.dev
	$(call install_beside,,-C cmake.define.DCTPS_SANITIZE=ON -C build-dir=build/sanitized-objects)

# Flower's requirements exclude versions of the first environment, so it has one of its own, which borrows the rest. Its
# own simulation extra pins an older ray than the borrowed one.
build/flower: | $(VENV)/.dev
	$(PYTHON) -m venv --clear --without-pip $@
	$(BIN)/python -m pip --python $@/bin/python install --quiet 'flwr>=1.41' || { rm -rf $@; exit 1; }
	printf '%s\n' $(CURDIR)/src $$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])') \
	  > $$(echo $@/lib/python*/site-packages)/zz-borrowed.pth

test-plain: build/plain  ## the fast tests on an installation without the native kernels
	build/plain/bin/python -c 'import dctps.ops.native as k; print(k.WHY_NOT); assert k.kernels is None'
	build/plain/bin/python -m pytest --quiet -n auto -p no:cacheprovider -m 'not process and not slow' tests

check-native: build/sanitized  ## the kernels' tests under the address and undefined-behaviour sanitizers
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
	  build/sanitized/bin/python -m pytest --quiet -n auto -p no:cacheprovider -m 'not slow' \
	  tests/test_kernels.py tests/test_direct_kernels.py tests/test_geometry_fuzz.py tests/test_normalise.py tests/test_finish.py \
	  tests/test_streamline.py

check: format lint types  ## format, lint, types and the fast tests
	$(BIN)/python -m pytest --quiet -m 'not process and not slow'

format: $(VENV)/.dev
	$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --quiet --fix .

lint: $(VENV)/.dev  ## format and lint, without changing anything
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .

types: $(VENV)/.dev  ## mypy, strict
	$(BIN)/mypy

help-pages: $(VENV)/.dev  ## writes the help of the commands, docstrings of public names and tables of runs into pages of docs/
	$(BIN)/python docs/hooks.py

docs: $(VENV)/.dev  ## the pages of docs/ as a site in build/site; a broken link is an error
	rm -rf build/site
	$(BIN)/python docs/hooks.py --site
	$(BIN)/zensical build --strict

STEPS := --steps 7 --warmup 4  # a large network takes pages from the system until its heap has settled
AVX2 := --instruction-set avx2
DENSE_PEERS := --peers published onnxruntime openvino
bench: $(VENV)/.dev  ## the tables of the README, about an hour with nothing else running; replaces results/bench-*
	$(BIN)/dctps bench step --models vgg19 --densities 1e-3 --offsets dct dct_signed hadamard/spatial/channel/lowest/0 $(STEPS)
	$(BIN)/dctps bench step --models vgg19 --densities 1e-2 --offsets dct $(STEPS)
	$(BIN)/dctps bench step --models resnet18 --densities 1e-3 --offsets dct $(STEPS)
	$(BIN)/dctps bench step --models mobilenetv2 --densities 1e-3 --offsets dct --steps 11 --warmup 4
	$(BIN)/dctps bench step --models resnet50 --densities 1e-3 --offsets dct $(STEPS)
	$(BIN)/dctps bench step --models resnet18 --width 16 --densities 1e-2 --offsets dct --threads 1 --steps 11
	$(BIN)/dctps bench step --models vgg19 resnet50 --densities 1e-3 --offsets dct --batch 32 --inference $(DENSE_PEERS) --steps 11
	$(BIN)/dctps bench step --models vgg19 resnet50 --densities 1e-3 --offsets dct --batch 1 --inference $(DENSE_PEERS) --steps 21
	$(BIN)/dctps bench step --models vgg19 resnet18 --densities 1e-2 1e-3 1e-4 --offsets none --batch 32 $(STEPS)
	$(BIN)/dctps bench step --models vgg19 resnet18 --densities 1e-2 1e-3 1e-4 --offsets none --batch 128 $(STEPS)
	$(BIN)/dctps bench step --models vgg19 --densities 1e-3 --offsets dct dct_signed $(STEPS) $(AVX2)
	$(BIN)/dctps bench step --models vgg19 --densities 1e-3 --offsets none $(STEPS) $(AVX2)
	$(BIN)/dctps bench step --models vgg19 --densities 1e-2 --offsets dct $(STEPS) $(AVX2)
	$(BIN)/dctps bench step --models resnet18 --densities 1e-3 --offsets dct $(STEPS) $(AVX2)
	$(BIN)/dctps bench step --models mobilenetv2 --densities 1e-3 --offsets dct --steps 11 --warmup 4 $(AVX2)
	$(BIN)/dctps bench step --models resnet50 --densities 1e-3 --offsets dct $(STEPS) $(AVX2)
	$(BIN)/dctps bench step --models resnet18 --width 16 --densities 1e-2 --offsets dct --threads 1 --steps 11 $(AVX2)
	$(BIN)/dctps bench scaling
	$(BIN)/dctps bench layers --model resnet50 --density 1e-3
	$(BIN)/dctps bench layers --model resnet18 --density 1e-3
	$(BIN)/dctps bench layers --model resnet18 --density 1e-3 $(AVX2)
	$(BIN)/python benchmarks/linear_step.py
	$(BIN)/python benchmarks/small_layers.py
	$(BIN)/python benchmarks/roofline.py
	$(BIN)/python benchmarks/input_pipeline.py --step
	$(BIN)/python benchmarks/busy_neighbour.py

federated: $(VENV)/.dev  ## the figure of federated learning, about an hour; lines that are done are not repeated
	$(BIN)/python examples/federated/rates.py
	$(BIN)/python examples/federated/figure.py

clean:  ## the environment and everything that tools leave behind
	rm -rf $(VENV) build demo .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache
