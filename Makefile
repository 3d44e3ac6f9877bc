# All set-up included; needs only Python 3.10 to 3.12.
#   make demo      trains on the demonstrations that ship
#   make quick     tests without learning runs and real simulators, in 2 minutes
#   make test      the tests that CI runs, in 8 minutes
#   make test-all  all of them, every loss with its sign flipped and every command of the docs too
#   make docs      the site of the pages in docs/, into site/
#   make drawings  the pictures on them, from the code and the results
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.10; do \
	$$p -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin

PYTEST := $(BIN)/pytest -n 2 --dist worksteal

.PHONY: demo quick test test-all docs drawings lint clean

demo: .venv/installed
	$(BIN)/python train.py --config configs/bc.json --name demo

quick: .venv/installed-test lint
	$(PYTEST) -m "not slow and not thorough"

test: .venv/installed-test lint
	$(PYTEST) -m "not thorough" $(addprefix --most-seconds=,$(MOST_SECONDS))

# The files of each part of test-all. What is in none of them is the part rest.
RAY := tests/test_cluster.py tests/online/test_ray.py tests/online/test_two_nodes.py tests/online/test_scaling.py
DOCS := tests/test_docs.py tests/test_site.py tests/test_drawings.py tests/test_migrating.py
FLIPS := tests/test_sign_flips.py
BENCHMARKS := tests/test_benchmarks.py
SIMULATORS := tests/envs
PARTS := RAY DOCS FLIPS BENCHMARKS SIMULATORS
REST := tests $(foreach part,$(PARTS),$(addprefix --ignore=,$($(part))))
FILES = $($(shell echo $(PART) | tr a-z A-Z))

test-all: .venv/installed-test lint
	$(if $(PART),$(if $(FILES),,$(error no part $(PART); there are ray docs flips benchmarks simulators rest)))
	$(PYTEST) -m "" $(FILES)

docs: .venv/installed-docs
	@rm -rf site
	$(BIN)/sphinx-build --quiet --fresh-env --nitpicky --fail-on-warning --keep-going -d build/doctrees docs site
	@echo "site/index.html"

drawings: .venv/installed-docs
	$(BIN)/python docs/drawings

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/mypy

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "offrl needs Python 3.10, 3.11 or 3.12 (make PYTHON=...)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

.venv/installed: .venv/bin/python setup.py
	@echo "installing into .venv (some minutes; PyTorch is large)"
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet -e ".[plot]"
	@touch $@

.venv/installed-test: .venv/installed
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet -e ".[test,docs,plot]"
	@touch $@

.venv/installed-docs: .venv/installed
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet -e ".[docs,plot]"
	@touch $@

clean:
	rm -rf .venv build site *.egg-info
