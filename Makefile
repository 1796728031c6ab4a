# The course's commands. `make` alone lists them.
# Options: PYTHON=python3.12 (interpreter), TORCH=cpu|cuda|any|auto (build of torch), ARGS="…" (to course run, course lab,
# pytest, bundle), JOBS=2 (tests at the same time; all tests that share a Triton are one after another)

PYTHON ?=
TORCH ?= auto
ARGS ?=
JOBS ?= 2
BIN = .venv/bin
export PYTHON TORCH

# Images of containers often set it. Then every process compiles again all that it imports, and takes twice as long to start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup course test lab fetch bundle lint lock pages

help:
	@echo "make course   make the environment, fetch the weights, execute every notebook into build/"
	@echo "make test     make the environment, fetch the weights, run the whole test suite"
	@echo "make lab      make the environment, fetch the weights, open copies of the notebooks in JupyterLab"
	@echo "make setup    make the environment alone (.venv)"
	@echo "make bundle   write everything for a machine without a network into build/bundle (ARGS=--help lists options)"
	@echo "make lint     check the style of the code, and show how large each part of it is"
	@echo "make lock     resolve the dependencies again into requirements/*.txt (needs uv)"
	@echo "make pages    write again what README.md and environment.yml derive from other files"

setup:
	@bash requirements/setup.sh

fetch: setup
	@$(BIN)/course fetch

course: fetch
	@$(BIN)/course run $(ARGS)

test: fetch
	@$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadgroup $(ARGS)

lab: fetch
	@$(BIN)/course lab $(ARGS)

bundle: setup
	@$(BIN)/python tools/bundle/make_bundle.py $(ARGS)

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/python tools/sizes.py

lock: setup
	@$(BIN)/python tools/lock.py

pages: setup
	@$(BIN)/python tools/pages.py
