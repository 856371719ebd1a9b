PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
NUMERICAL := $(addprefix tests/,schemes kernels models training/test_loss.py evaluation/test_perplexity.py \
  evaluation/test_verdict.py generation receptive/test_field.py)
# Kernels round differently from one instruction set to the next: AVX2 where there is AVX-512, none where there is not.
OTHER_CPU := env $(shell grep -q avx512f /proc/cpuinfo 2>/dev/null \
  && echo ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
  || echo ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2)

.PHONY: browser demo test docs check format extras bench campaign clean

MODELS := $(patsubst %/config.json,%,$(wildcard results/models/*/config.json))
DEMO_TEXT := --corpus fieldlens --out demo
demo: $(READY)  ## evaluate and measure the reference models on the sources of this library: a picture, then a report
ifneq ($(MODELS),)
	$(BIN)/fieldlens evaluate $(MODELS) $(DEMO_TEXT) --lengths 16,32,64,128,256,512 --protocol last-k --k 16 --segments 100
	$(BIN)/fieldlens measure $(MODELS) $(DEMO_TEXT) --length 256 --segments 24 --check --windows 32,64,128
	@echo "To train and measure a model of your own, in two to three minutes:"
	@echo "  $(BIN)/fieldlens train --preset glance --out runs/first && $(BIN)/fieldlens measure runs/first --length 512 --check"
else  # no reference models are committed yet: train five small ones, about ten minutes on two cores
	$(BIN)/fieldlens study demo --out demo/results --runs demo/runs
endif

test: $(READY)  ## run the test suite, its numerical part also with another instruction set of the CPU
	$(BIN)/python -m pytest -n 2 --dist worksteal
	$(OTHER_CPU) $(BIN)/python -m pytest -n 2 --dist worksteal $(NUMERICAL)

docs: $(READY)  ## build the site into site/, without warnings
	$(BIN)/python docs/build.py site

check: $(READY)  ## formatter, linter, type checker
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)  ## mend what the formatter and linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

extras: $(READY)  ## install the heavy extras and run the tests that need them
	$(BIN)/pip install -q -c constraints.txt -e '.[dev,eval,data,track,ray]'
	$(BIN)/python -m pytest tests/evaluation/test_harness.py tests/data/test_corpus.py tests/training/test_loop.py tests/study/test_ray.py

bench: $(READY)  ## every benchmark, tables on the terminal and JSON in benchmarks/
	$(BIN)/pip install -q -c constraints.txt -e '.[dev,bench]'
	$(BIN)/python benchmarks/attention.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/evaluation.py
	$(BIN)/python benchmarks/measuring.py
	$(BIN)/python benchmarks/generation.py
	$(BIN)/python benchmarks/explore.py
	$(BIN)/python benchmarks/extension.py

MINUTES ?= 60
campaign: $(READY)  ## what takes long, an hour at a time (MINUTES=60, PIECES="flips disk"); the same command goes on
	$(BIN)/pip install -q -c constraints.txt -e '.[dev,gguf,ray]'
	HF_HOME=$(CURDIR)/campaign/huggingface PYTHONPATH=tests $(BIN)/python -m campaign.run $(PIECES) --minutes $(MINUTES)

browser:  ## a Chromium for the tests of the report, where the system's package manager may install one
	@command -v chromium chromium-browser google-chrome >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -qq -y chromium; } || \
	  echo "no Chromium: the browser tests will be skipped"

clean:
	rm -rf .venv demo site dist

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt -e '.[dev,docs]'
	touch $@
