# Two commands need nothing else before them: `make simulate` and `make test` (Python 3.11 or newer, and make).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
.DEFAULT_GOAL := help

# Each stamp depends on pyproject.toml alone, so a second call installs nothing.
$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

.PHONY: help simulate test test-deploy test-processors quick lint docs lock wheelhouse clean

help: ## Show what can be made.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

simulate: $(VENV)/.installed ## Run the quickstart scenario through Flower's simulation.
	$(BIN)/fl-dpbayes simulate quickstart

lint: $(VENV)/.installed-dev ## Style, docstrings and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: $(VENV)/.installed-dev ## Every test; lint and the federation of real processes run beside the others.
	$(BIN)/python -m tests.run

test-deploy: $(VENV)/.installed-dev ## A federation of real processes on this machine, with all that goes wrong.
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 0 -m deploy tests/deploy

test-processors: $(VENV)/.installed-dev ## Tests of rows again, under other settings of the arithmetic and another processor.
	$(BIN)/python -m tests.processors.run

quick: $(VENV)/.installed-dev ## All tests but the slow ones: a minute.
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -m "not slow"

docs: $(VENV)/.installed-dev ## The pages of docs/ as a site, in site/; a warning is an error.
	$(BIN)/python -m mkdocs build --strict

lock: $(VENV)/.installed ## Pin every package with its hashes in deploy/constraints.txt.
	$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-annotate --no-header --quiet --output-file deploy/constraints.txt
	for part in hospital "hospital-images --no-deps"; do set -- $$part; \
	  $(BIN)/uv pip compile deploy/$$1.in $$2 --constraint deploy/constraints.txt \
	  --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header --quiet \
	  --output-file deploy/$$1.txt; done

WHEELHOUSE := wheelhouse
LOCK := deploy/constraints.txt
HOSPITAL := deploy/hospital.txt
wheelhouse: $(VENV)/.installed ## All that a site installs, in wheelhouse/; no index is needed there.
	rm -rf $(WHEELHOUSE)
	$(BIN)/python -m pip download --quiet --require-hashes --only-binary :all: -r $(LOCK) -d $(WHEELHOUSE)
	$(BIN)/python -m pip wheel --quiet --no-deps . -w $(WHEELHOUSE)
	cp $(LOCK) $(WHEELHOUSE)/constraints.txt
	cp $(HOSPITAL) deploy/hospital-images.txt $(WHEELHOUSE)/
	cd $(WHEELHOUSE) && for list in constraints.txt hospital.txt; do \
	  echo "fl-dpbayes==$$(echo fl_dpbayes-*.whl | cut -d - -f 2)" \
	  "--hash=sha256:$$(sha256sum fl_dpbayes-*.whl | cut -c 1-64)" >> $$list; done

clean: ## Remove the virtual environment.
	rm -rf $(VENV)
