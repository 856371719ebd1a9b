PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: demo test check format extras bench campaign clean

demo: $(READY)  ## draw every positional scheme into demo/
	$(BIN)/fieldlens schemes
	$(BIN)/fieldlens schemes --plot demo/schemes.png

test: $(READY)  ## run the test suite
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(READY)  ## formatter, linter, type checker
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)  ## mend what the formatter and linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

extras: $(READY)  ## install the heavy extras and run the tests that need them
	$(BIN)/pip install -q -c constraints.txt -e '.[dev,eval]'
	$(BIN)/python -m pytest tests/test_harness.py

bench: $(READY)  ## every benchmark, tables on the terminal and JSON in benchmarks/
	$(BIN)/python benchmarks/attention.py

campaign: $(READY)  ## plant bugs, one at a time, and expect the suite to find each
	$(BIN)/python tests/plant.py

clean:
	rm -rf .venv demo

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@
