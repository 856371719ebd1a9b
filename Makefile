PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: browser demo test docs check format extras bench campaign clean

demo: $(READY)  ## train, evaluate and measure five schemes; about ten minutes on two cores, then a report
	$(BIN)/fieldlens study demo --out demo/results --runs demo/runs

test: $(READY)  ## run the test suite
	$(BIN)/python -m pytest -n 2 --dist worksteal

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
	$(BIN)/python -m pytest tests/test_harness.py tests/test_corpus.py tests/test_train.py tests/test_ray.py

bench: $(READY)  ## every benchmark, tables on the terminal and JSON in benchmarks/
	$(BIN)/pip install -q -c constraints.txt -e '.[dev,bench]'
	$(BIN)/python benchmarks/attention.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/evaluation.py
	$(BIN)/python benchmarks/measuring.py
	$(BIN)/python benchmarks/generation.py

campaign: $(READY)  ## what takes long: planted bugs, kills, full disks, bit flips
	$(BIN)/python tests/plant.py
	$(BIN)/python tests/campaign.py
	$(BIN)/pip install -q -c constraints.txt -e '.[dev,ray]'
	$(BIN)/python tests/campaign_study.py

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
