# Two commands do all the set-up: `make demo` and `make test`. Both create .venv themselves.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.calmrl
EXTRAS_demo :=
EXTRAS_dev := [dev]
EXTRAS_bench := [dev,bench]
EXTRAS_docs := [dev,docs]

.PHONY: help demo test lint bench docs picture clean

help:
	@echo "make demo   compare the methods on bundled real data (writes demo-out/)"
	@echo "make test   run the test suite"
	@echo "make lint   ruff, ruff format, mypy"
	@echo "make bench  measure speed and quality against other packages (writes bench-out/)"
	@echo "make docs   build the documentation into site/"

# One stamp per set of extras; a set is installed again only when what it is made of changes.
$(STAMPS)-%: pyproject.toml constraints.txt
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing calmrl$(EXTRAS_$*) and its dependencies into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".$(EXTRAS_$*)"
	@touch $@

demo: $(STAMPS)-demo
	$(BIN)/calmrl demo --out demo-out

test: $(STAMPS)-dev
	$(BIN)/python -m pytest -n 2

lint: $(STAMPS)-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMPS)-bench
	$(BIN)/python -m benchmarks --out bench-out

docs: $(STAMPS)-docs
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site demo-out bench-out
