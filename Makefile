# Two commands matter: `make demo` and `make test`. Each sets up everything it needs, and says what it is doing.

PYTHON ?= python3
VENV := .venv/bin

.PHONY: help demo demo-down test check format generate bench prepare dev clean

help:
	@echo "make demo       boot a real Kubernetes here, drain a node under a training job, show that nothing is lost"
	@echo "make demo-down  remove everything the demo started"
	@echo "make test       set up everything and run all tests"
	@echo "make bench      measure, print tables, write build/bench/*.json"
	@echo "make check      format, lint, types, layers, generated files"
	@echo "make format     format the code"
	@echo "make generate   write the CRD and the reference pages anew"

demo: prepare
	$(VENV)/python -m e2e.demo

demo-down: dev
	$(VENV)/python -m e2e.demo down

test: prepare
	$(VENV)/python -m pytest

bench: prepare
	$(VENV)/python -m e2e.bench

# Where the cluster cannot run (no root, not Linux) this says what is missing, and the cluster tests skip.
prepare:
	$(PYTHON) -m e2e.prepare all

dev:
	$(PYTHON) -m e2e.prepare dev

check: dev
	$(VENV)/ruff format --check .
	$(VENV)/ruff check .
	$(VENV)/mypy
	$(VENV)/lint-imports
	$(VENV)/python -m perdure_operator.schema.crd --check
	$(VENV)/python -m perdure_operator.schema.docs --check

format: dev
	$(VENV)/ruff format .
	$(VENV)/ruff check --fix .

generate: dev
	$(VENV)/python -m perdure_operator.schema.crd --write
	$(VENV)/python -m perdure_operator.schema.docs --write

clean:
	rm -rf build .venv
