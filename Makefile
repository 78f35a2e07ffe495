# Shortcuts for people; the scripts in ci/ do the work, for people and CI alike.

# PYTHON=/path/to/python3.12 selects the interpreter of .venv (default: the one it was made with, otherwise the newest here).
PYTHON ?=
MATRIX ?= matrix.yaml
# ARGS is passed on: make bench ARGS='--backend jax', make test ARGS='-k plan'
ARGS ?=
export PYTHON
# .venv has all packages; modules of other programs must not take their place.
unexport PYTHONPATH PYTHONHOME

.DEFAULT_GOAL := help
.PHONY: bench test unit process lint types docs browser wheel setup clean help

bench: setup  ## measure: run matrix.yaml on the three CPU backends, print the table, write results/latest/report.html
	@.venv/bin/runner --matrix $(MATRIX) $(ARGS)

test:  ## the unit tier in parallel and one real run per backend (minutes)
	@ci/test $(ARGS)

unit:  ## only the unit tier, for the edit loop (a minute)
	@ci/unit $(ARGS)

process:  ## the process tier: real processes and real backends
	@ci/process $(ARGS)

lint:  ## check rules and format with ruff, and the locks against pyproject.toml
	@ci/lint

types:  ## mypy, strict
	@ci/types

docs:  ## build the documentation site in build/site, check its links and the length of its pages
	@ci/docs $(ARGS)

browser:  ## the tests in headless Chromium
	@ci/browser $(ARGS)

wheel:  ## build the wheel and test it, without any backend, under each Python found here
	@ci/wheel

setup:  ## make .venv (bench, test and the others do this automatically)
	@ci/setup

clean:  ## remove .venv and caches; results stay
	rm -rf .venv .venv-audit .venv-docs .venv-openvino-cpu .venv-release .venv-serve build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './results/*' -prune -exec rm -rf {} +

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 16
