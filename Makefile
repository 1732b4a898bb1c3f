# Every target works in a clean checkout; `make help` lists them. CI runs only these targets (.ci/run).
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
BENCH ?=
FUZZ_SECONDS ?= 60
# Checks the fuzz targets without the C++ library that they need at run time.
FUZZ_CHECK := CUSTOM_LIBFUZZER_PATH=/none/libfuzzer.a cargo
RUST := Cargo.toml $(wildcard Cargo.lock) $(shell find crates -name '*.rs' -o -name Cargo.toml | grep -v /target/)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Install the toolchain of rust-toolchain.toml if rustup does not install it by itself.
ifeq ($(shell rustc --version 2>/dev/null),)
$(shell rustup toolchain install >&2)
endif

.PHONY: all help build debug-build demo test check docs bench format fuzz clean
all: build

##@ For every change
# Prints the comment after each target, below the headings of the groups (##@).
help: ## print this list
	@awk -F ':.*## ' '/^##@ / { print (n++ ? "\n" : "") substr($$0, 5) } /^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(BIN)/python:
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "cntkio needs Python 3.11 or newer: make PYTHON=..."'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -U "pip>=25.1"

$(VENV)/.tools: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q "maturin>=1.12,<2" "numpy>=2"
	touch $@

$(VENV)/.test-tools: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q --group test
	touch $@

$(VENV)/.check-tools: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q --group check
	touch $@

$(VENV)/.docs-tools: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q --group docs
	touch $@

# Installs the package into the environment, compiled for speed; Python files are used in place.
$(VENV)/.release: $(RUST) pyproject.toml $(VENV)/.tools
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop -q --release
	rm -f $(VENV)/.debug; touch $@

# The same with overflow and debug assertions on.
$(VENV)/.debug: $(RUST) pyproject.toml $(VENV)/.tools
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop -q
	rm -f $(VENV)/.release; touch $@

build: $(VENV)/.release ## install the package into .venv, compiled for speed
debug-build: $(VENV)/.debug

demo: build ## inspect the examples, and train a classifier on them
	$(BIN)/python examples/demo.py

# Tests of adapters run in a separate process, because frameworks change how forks and interrupts behave.
TORCH_TESTS = $(wildcard tests/adapters/test_torch*.py)
PYTEST = $(BIN)/python -m pytest tests --ignore=tests/adapters \
	&& $(BIN)/python -m pytest $(TORCH_TESTS) $(filter-out $(TORCH_TESTS),$(wildcard tests/adapters/test_*.py))

# Both builds pass all tests. The release build comes last and stays.
test: $(VENV)/.test-tools ## run the tests of Rust and Python
	cargo test -q --workspace
	cargo test -q --workspace --release
	$(MAKE) debug-build && $(PYTEST)
	$(MAKE) build && $(PYTEST)

check: build $(VENV)/.check-tools ## run rustfmt, clippy, ruff, mypy, and the comparison of the stub with the built module
	cargo fmt --all --check
	cargo fmt --manifest-path crates/fuzz/Cargo.toml --check
	cargo clippy -q --workspace --all-targets -- -D warnings
	$(FUZZ_CHECK) clippy -q --manifest-path crates/fuzz/Cargo.toml --all-targets -- -D warnings
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest cntkio._core --ignore-disjoint-bases --allowlist crates/python/stubtest-allowed.txt

docs: build $(VENV)/.docs-tools ## build the pages as a site, in site/
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs site

# Atheris, if it exists for this Python, chooses inputs by the code that they reach; otherwise inputs are random.
$(VENV)/.fuzz-tools: pyproject.toml $(VENV)/.test-tools
	$(BIN)/python -m pip install -q --group fuzz || true
	touch $@

# Runs all targets, Rust and Python, each for FUZZ_SECONDS. The seeds are recorded cases and findings that were fixed.
fuzz: build $(VENV)/.fuzz-tools ## fuzz each parser, Rust and Python, for a minute (FUZZ_SECONDS=60)
	rm -rf .cache/fuzz/seeds && $(BIN)/python tests/fuzz/seeds.py .cache/fuzz/seeds
	status=0; crates/fuzz/run $(FUZZ_SECONDS) || status=1; \
	$(BIN)/python tests/fuzz/run.py $(FUZZ_SECONDS) .cache/fuzz/seeds/python .cache/fuzz/corpus \
		$$(ls .cache/fuzz/seeds/python) || status=1; exit $$status

# Other readers of text are in a separate environment; the benchmark names readers that could not be installed.
.cache/bench/venv/.tools:
	mkdir -p .cache/bench && $(PYTHON) -m venv .cache/bench/venv
	.cache/bench/venv/bin/pip install -q "numpy>=2"
	for peer in polars pyarrow scikit-learn; do .cache/bench/venv/bin/pip install -q $$peer || true; done
	touch $@

# BENCH="--cntk PYTHON" also measures CNTK 2.7; see bench/ctf.py for more options.
bench: build .cache/bench/venv/.tools ## measure the speed, also of CNTK 2.7 and of other readers of text if they are installed (BENCH=OPTIONS)
	.cache/bench/venv/bin/python bench/ctf.py --python $(BIN)/python $(BENCH)

format: ## format the code of Rust and Python
	cargo fmt --all
	cargo fmt --manifest-path crates/fuzz/Cargo.toml
	$(BIN)/ruff check -q --fix .
	$(BIN)/ruff format -q .

clean: ## remove everything that make has made
	rm -rf $(VENV) target .cache dist site

include packaging/release.mk
