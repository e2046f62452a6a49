# `make help` lists the tasks. ARGS goes to the program that a task runs: make test ARGS='-k linear'.
# Users run `demo` and `test`. The other tasks are for contributors: they put the lowest supported
# versions into .venv, and `high` puts the newest ones into .venv-high.

PYTHON ?= python3
PYTHON2ND ?=
ARGS ?=
# One pytest worker for each core, eight at most: each of them compiles for eight virtual devices.
JOBS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((n < 8 ? n : 8)))

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

PYTEST = -m pytest -n $(JOBS) --dist loadgroup --durations=10
NOTEBOOKS = $(wildcard notebooks/*.ipynb)

.PHONY: help demo test setup fast lint types layers notebooks bench coverage check low high clean

help: ## List the tasks
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' Makefile

demo: .venv/has-demo ## Train a character-level transformer on real text: three to four minutes
	@.venv/bin/python -m nnxgraph.demo $(ARGS)

test: .venv/has-test ## Run the tests and every example in the documentation
	@.venv/bin/python $(PYTEST) $(ARGS)

setup: .venv/has-dev ## Install the library and all that the tasks below need into .venv

fast: .venv/has-dev ## Run the tests that are not slow, up to the first failure
	@.venv/bin/python $(PYTEST) -x -m 'not slow' $(ARGS)

lint: .venv/has-dev ## Check the style (ruff)
	@.venv/bin/python -m ruff check .

types: .venv/has-dev ## Check the types (mypy --strict)
	@.venv/bin/python -m mypy

layers: .venv/has-dev ## Check the layer table and the other house rules that a program can read
	@.venv/bin/python -m pytest -q tests/test_layers.py tests/test_house_rules.py

notebooks: .venv/has-dev ## Check that the notebooks are stored without outputs, and execute them
	@.venv/bin/python -m pytest -q tests/test_notebooks.py
	@$(if $(NOTEBOOKS),.venv/bin/python -m pytest -q --nbmake --nbmake-timeout=900 $(NOTEBOOKS),echo 'There is no notebook yet.')

bench: .venv/has-dev ## Run the benchmarks: what the library costs beside raw JAX
	@.venv/bin/python -m tests.benchmarks $(ARGS)

coverage: .venv/has-dev ## Run the tests and list the lines that none of them reaches
	@.venv/bin/python $(PYTEST) --cov --cov-report=term $(ARGS)

check: find-high lint types layers notebooks low high ## Check everything, at both ends of the supported versions

low: .venv/has-dev ## Run the tests with the lowest supported versions, on PYTHON
	@$(call announce,low,.venv)
	@.venv/bin/python $(PYTEST) $(ARGS)

high: find-high ## Run the tests with the newest supported JAX, on PYTHON2ND or another Python >= 3.12
	@if [ -n '$(HIGH)' ]; then $(MAKE) run-high; fi

clean: ## Remove the virtual environments and everything that the other tasks left
	rm -rf .venv .venv-high build dist htmlcov .coverage .coverage.* .hypothesis *.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +


# The high end runs on the first of these that is a working Python >= 3.12. Each candidate is run:
# a name on PATH may be a shim with nothing behind it.
CANDIDATES = $(PYTHON2ND) python3.13 python3.12 $$(pyenv root 2>/dev/null)/versions/3.1[2-9]*/bin/python
FIND_HIGH = for p in $(CANDIDATES); do \
	if "$$p" -c 'import sys; assert sys.version_info >= (3, 12)' 2>/dev/null; then echo "$$p"; break; fi; done
HIGH = $(eval HIGH := $(shell $(FIND_HIGH)))$(HIGH)

.PHONY: find-high run-high
find-high:
	@if [ -z '$(HIGH)' ]; then \
	echo 'No Python >= 3.12 was found, so the high end is not tested: give one as PYTHON2ND.' >&2; \
	[ "$${CI:-}" != true ]; fi

run-high: .venv-high/has-dev
	@$(call announce,high,.venv-high)
	@.venv-high/bin/python $(PYTEST) $(ARGS)

# Say what an end runs on, and see that it is that end: $(call announce,low|high,ENVIRONMENT).
define announce
$(2)/bin/python -c 'import sys, jax; \
	print(f"== the $(1) end: Python {sys.version.split()[0]}, JAX {jax.__version__}"); \
	is_lowest = f"jax=={jax.__version__}" in sys.argv; \
	sys.exit(None if is_lowest == ("$(1)" == "low") else "That JAX is not the $(1) end.")' $$($(LOWEST))
endef


# Virtual environments. `made-by` names the interpreter and the folder, and changes only with them;
# `has-EXTRA` is the time at which that extra of setup.cfg was installed.
MADE_BY = import sys; print(sys.version, sys.base_prefix, "$(CURDIR)")
PIP = -m pip install --quiet --disable-pip-version-check --use-pep517
# The lower bounds of install_requires as constraints: jax==0.10.2, ...
LOWEST = sed -n '/^install_requires/,/^$$/ s/^ *\([a-z][a-z]*\) >=\([0-9.][0-9.]*\).*/\1==\2/p' setup.cfg

.PHONY: FORCE
.PRECIOUS: .venv/made-by .venv/has-% .venv-high/made-by .venv-high/has-%

.venv/made-by: FORCE
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11)' 2>/dev/null || { \
	echo '$(PYTHON) is not a working Python >= 3.11: name one, as in make test PYTHON=python3.11.' >&2; exit 1; }
	@$(call environment,$(PYTHON))

.venv-high/made-by: FORCE
	@$(call environment,$(HIGH))

define environment
id=$$($(1) -c '$(MADE_BY)'); \
	if [ ! -x $(@D)/bin/python ] || [ "$$id" != "$$(cat $@ 2>/dev/null)" ]; then \
	echo 'Making $(@D)'; $(1) -m venv --clear $(@D); echo "$$id" > $@; fi
endef

.venv/has-dev: .venv/made-by setup.cfg setup.py
	@echo 'Installing nnxgraph[all] at its lowest versions into .venv'
	@$(LOWEST) > .venv/lowest.txt
	@.venv/bin/python $(PIP) -c .venv/lowest.txt -e '.[all]' || { \
	echo 'Where no version fits this Python, name another: make $(MAKECMDGOALS) PYTHON=python3.11' >&2; exit 1; }
	@touch $@

.venv/has-%: .venv/made-by setup.cfg setup.py
	@echo 'Installing nnxgraph[$*] into .venv'
	@.venv/bin/python $(PIP) -e '.[$*]'
	@touch $@

.venv-high/has-dev: .venv-high/made-by setup.cfg setup.py
	@echo 'Installing nnxgraph[all] at its newest versions into .venv-high'
	@.venv-high/bin/python $(PIP) --upgrade --upgrade-strategy eager -e '.[all]'
	@touch $@
