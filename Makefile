# Every target works in a clean checkout; `make help` lists them. CI runs only these targets (.ci/run).
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
BENCH ?=
FUZZ_SECONDS ?= 60
# Folder or file below tests/ for `make quick`.
FOLDER ?= formats
# Cargo would take the 2 jobs of `make -j2` for the number of cores.
CARGO := env -u MAKEFLAGS -u MFLAGS cargo
# Checks the fuzz targets without the C++ library that they need at run time.
FUZZ_CHECK := CUSTOM_LIBFUZZER_PATH=/none/libfuzzer.a $(CARGO)
RUST := Cargo.toml $(wildcard Cargo.lock) $(shell find crates -name '*.rs' -o -name Cargo.toml | grep -v /target/)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests start hundreds of processes. Each would compile the package's modules again if this variable of the caller applied.
unexport PYTHONDONTWRITEBYTECODE
# Install the toolchain of rust-toolchain.toml if rustup does not install it by itself.
ifeq ($(shell rustc --version 2>/dev/null),)
$(shell rustup toolchain install >&2)
endif

.PHONY: all help build demo test test-all quick checked rust-tests check lint docs bench format fuzz clean
all: build

##@ For every change
# Prints the comment after each target, below the headings of the groups (##@).
help: ## print this list
	@awk -F ':.*## ' '/^##@ / { print (n++ ? "\n" : "") substr($$0, 5) } /^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(BIN)/python:
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "cntkio needs Python 3.11 or newer: make PYTHON=..."'
	$(PYTHON) -m venv $(VENV)

# pip would compile all modules of a package. Python compiles and keeps those that are imported: a small part.
PIP_INSTALL := $(BIN)/python -m pip install -q --no-compile
$(VENV)/.tools: pyproject.toml | $(BIN)/python
	$(PIP_INSTALL) "maturin>=1.12,<2" "numpy>=2"
	touch $@

# Groups need a newer pip than some versions of Python bring. Only one pip at a time may change the environment, so each group
# waits for the one before, also under `make -j`.
INSTALL := $(PIP_INSTALL) "pip>=25.1" && $(PIP_INSTALL)

$(VENV)/.test-tools: pyproject.toml $(VENV)/.tools
	$(INSTALL) --group test
	touch $@

$(VENV)/.adapter-tools: pyproject.toml $(VENV)/.test-tools
	$(INSTALL) --group adapters
	touch $@

$(VENV)/.check-tools: pyproject.toml $(VENV)/.test-tools $(VENV)/.docs-tools
	$(INSTALL) --group check
	touch $@

$(VENV)/.docs-tools: pyproject.toml $(VENV)/.test-tools
	$(INSTALL) --group docs
	touch $@

# Installs the package into the environment, compiled for speed; Python files are used in place. The profile `local` is
# about as fast as the profile of wheels, and compiles in less time (see Cargo.toml). Some crates that need no Python are
# compiled while the environment is made; the core comes later, together with the module, so that two cores have work.
$(VENV)/.release: $(RUST) pyproject.toml
	cargo build -q --profile local -p cntkio-compressed -p cntkio-simd & crates=$$!; \
	$(MAKE) --no-print-directory $(VENV)/.tools && wait $$crates && \
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop -q --profile local
	touch $@

build: $(VENV)/.release ## install the package into .venv, compiled for speed

demo: build ## inspect the examples, and train a classifier on them
	$(BIN)/python examples/demo.py

# The package with a module that has all assertions. It stands apart from the installed package, which stays as it is.
CHECKED := target/checked/python
IS_MACOS = $(findstring darwin,$(HOST))
checked: | $(BIN)/python
	PYO3_PYTHON=$(CURDIR)/$(BIN)/python $(CARGO) rustc -q --profile checked -p cntkio-module \
		$(if $(IS_MACOS),-- -C link-arg=-undefined -C link-arg=dynamic_lookup)
	rm -rf $(CHECKED) && mkdir -p $(CHECKED)/cntkio && ln -s $(CURDIR)/python/cntkio/* $(CHECKED)/cntkio/
	rm -f $(CHECKED)/cntkio/_core.abi3.so $(CHECKED)/cntkio/__pycache__
	cp target/checked/libcntkio_core_module.$(if $(IS_MACOS),dylib,so) $(CHECKED)/cntkio/_core.abi3.so

# Tests of the repository's text, which no build can change; `make check` runs them.
TEXT_TESTS := $(addprefix tests/test_,distribution.py house.py reference.py types.py)
# Tests of adapters run in separate processes, because frameworks change how forks and interrupts behave.
TORCH_TESTS = $(wildcard tests/adapters/test_torch*.py)
CLUSTER_TESTS = $(wildcard tests/adapters/test_ray*.py tests/adapters/test_spark*.py tests/adapters/test_s3*.py)
OTHER_ADAPTER_TESTS = $(filter-out $(TORCH_TESTS) $(CLUSTER_TESTS),$(wildcard tests/adapters/test_*.py))
HAS_TORCH = $(BIN)/python -c 'import importlib.util as found; raise SystemExit(not found.find_spec("torch"))'
# One process more than there are cores, because some tests wait for others.
PYTEST = $(BIN)/python -m pytest -n $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)') --dist worksteal
PYTEST_CHECKED = PYTHONPATH=$(CURDIR)/$(CHECKED) $(PYTEST)
# What the release build must pass too: recorded deliveries of every format, text with every kernel, and some tests of adapters.
# `make test` runs every third recorded case on it, after all of them ran on the build with assertions.
EVERY := 3
SMOKE = $(PYTEST) tests/conformance --every $(EVERY) \
	&& $(PYTEST) tests/formats/ctf/test_kernels.py $(addprefix tests/adapters/test_,torch_recorded_states.py jax.py damaged_tables.py)

rust-tests: checked
	$(CARGO) test -q --profile checked --workspace

# The release build passes a few tests, and a build with all assertions the others. The Rust tests are compiled and run while
# pip installs what the Python tests need.
test: build ## run the tests that every change must pass, Rust and Python
	$(MAKE) --no-print-directory -j2 rust-tests $(VENV)/.adapter-tools
	$(PYTEST_CHECKED) tests --ignore=tests/adapters --ignore=tests/trainers --ignore=tests/formats/ctf/test_kernels.py $(TEXT_TESTS:%=--ignore=%)
	if $(HAS_TORCH); then $(PYTEST_CHECKED) $(TORCH_TESTS); fi
	$(PYTEST_CHECKED) $(OTHER_ADAPTER_TESTS)
	$(SMOKE)

# All cases, of which `make test` leaves some out, with new random examples; then tests of large packages, random sources,
# and each fuzz target for a few seconds. Tests of Spark run if Java is installed.
THOROUGH := --hypothesis-profile thorough
test-all: EVERY := 1
test-all: export CNTKIO_ALL_ROUNDS := 1
test-all: build ## run all cases of all tests, the fuzz targets and random sources
	$(MAKE) --no-print-directory -j2 rust-tests $(VENV)/.torch-tools
	$(PYTEST_CHECKED) $(THOROUGH) tests --ignore=tests/adapters --ignore=tests/trainers
	$(PYTEST_CHECKED) $(THOROUGH) $(TORCH_TESTS)
	$(PYTEST_CHECKED) $(THOROUGH) $(OTHER_ADAPTER_TESTS)
	$(SMOKE)
	$(MAKE) fuzz FUZZ_SECONDS=5
	$(MAKE) soak SOAK_SECONDS=60
	$(MAKE) test-stores test-ray $(if $(shell command -v java),test-spark)

# The inner loop, such as `make quick FOLDER=formats/ctf`.
quick: rust-tests $(VENV)/.test-tools ## run the Rust tests, and the tests below tests/FOLDER
	$(PYTEST_CHECKED) tests/$(FOLDER)

# The checks of the Rust code, which need no Python environment.
lint:
	cargo fmt --all --check
	cargo fmt --manifest-path crates/fuzz/Cargo.toml --check
	$(CARGO) clippy -q --workspace --all-targets -- -D warnings
	$(FUZZ_CHECK) clippy -q --manifest-path crates/fuzz/Cargo.toml --all-targets -- -D warnings

check: build lint $(VENV)/.check-tools docs ## run rustfmt, clippy, ruff, mypy, the tests of stubs, types and structure; build the site
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest cntkio._core --ignore-disjoint-bases --allowlist crates/python/stubtest-allowed.txt
	$(PYTEST) $(TEXT_TESTS)

docs: build $(VENV)/.docs-tools ## build the pages as a site, in site/
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs site
	$(BIN)/python docs/check_site.py site

# Atheris, if it exists for this Python, chooses inputs by the code that they reach; otherwise inputs are random.
$(VENV)/.fuzz-tools: pyproject.toml $(VENV)/.test-tools
	$(INSTALL) --group fuzz || true
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
