# Two commands do all the set-up: `make demo` and `make test`. Both create .venv themselves.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.calmrl
EXTRAS_demo := [search,serve]
EXTRAS_dev := [dev,media,search,ray]
EXTRAS_bench := [bench]
EXTRAS_docs := [docs]
EXTRAS_release := [release]

.PHONY: help demo compare test anywhere lint bench reliability docs picture release-check clean

help:
	@echo "make demo   compare methods on bundled real data, then search it (writes demo-out/)"
	@echo "make compare  the full study: all methods, three collections, ten seeds (writes study-out/; hours)"
	@echo "make test   run the test suite (TESTS=\"-m ray\": only the tests with Ray; also browser, processes, soak)"
	@echo "make anywhere  run it as other users, with other homes, paths, locales, cores and loads (writes anywhere-out/; an hour)"
	@echo "make lint   ruff, ruff format, mypy"
	@echo "make bench  measure speed and quality against other packages (writes bench-out/)"
	@echo "make reliability  kill, damage, degenerate and misname everything, and count (writes reliability-out/; an hour or two)"
	@echo "make docs   build the documentation into site/"
	@echo "make release-check  build twice, check the files, run the README in an empty environment"
	@echo "make picture  draw the picture of the documentation's first page again"

# One stamp per set of extras; a set is installed again only when what it is made of changes.
$(STAMPS)-%: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "calmrl needs Python 3.10 or newer: make PYTHON=...")'
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing calmrl$(EXTRAS_$*) and its dependencies into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".$(EXTRAS_$*)"
	@touch $@

demo: $(STAMPS)-demo
	$(BIN)/calmrl demo --out demo-out --force

# The study behind the tables of README and docs; a run that was stopped resumes.
compare: $(STAMPS)-demo
	$(BIN)/calmrl compare study --out study-out
	$(BIN)/python docs/make_study.py study-out

# Bytecode is written: otherwise every process that a test starts compiles the package, and every run all tests, again.
# Three workers, for two processors or more: many tests wait for processes that they start.
test: $(STAMPS)-dev
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist loadscope --no-loadscope-reorder $(TESTS)

# Four at once: each of them sees the load of the others.
anywhere:
	$(PYTHON) scripts/anywhere.py --jobs 4 --times 2 --out anywhere-out

lint: $(STAMPS)-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMPS)-bench
	$(BIN)/python -m benchmarks --out bench-out

reliability: $(STAMPS)-dev
	@mkdir -p reliability-out
	$(BIN)/python -m tests.reliability --full --out reliability-out/table.md

# The picture on the first page of the documentation, drawn from real numbers; it is committed, so that nobody has to run this.
picture: $(STAMPS)-demo
	$(BIN)/python docs/make_picture.py

docs: $(STAMPS)-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# TAG=v0.1.0 compares the version with a tag; DIST=FOLDER keeps the wheel and the sdist.
release-check: $(STAMPS)-release
	$(BIN)/python scripts/release_check.py $(if $(TAG),--tag $(TAG)) $(if $(DIST),--out $(DIST))

clean:
	rm -rf $(VENV) site demo-out study-out bench-out reliability-out anywhere-out
