# Everything runs in .venv: Python 3.11 or newer, CPU or CUDA. The demo needs the required packages only; tests need all of them.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --constraint constraints.txt --editable
# Fast tests of every package, for the time between two edits.
QUICK := tests/test_architecture.py tests/core tests/scenes/test_geometry.py tests/data/test_batch.py tests/losses/test_set_loss.py \
  tests/scenes/test_track_history.py tests/deploy/test_stream.py tests/models/test_modes.py tests/models/test_crowd.py tests/recipes tests/evaluation/test_metrics.py tests/plotting/test_artists.py \
  tests/heads/test_box_loss.py tests/heads/test_shapes.py tests/training/test_optim.py tests/cli/test_overview.py tests/data_prep/test_progress.py

.PHONY: install demo quick test lint docs clean

install: .venv/dev

.venv/bin/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

.venv/demo: setup.py constraints.txt | .venv/bin/python
	$(INSTALL) .
	touch $@

.venv/dev: setup.py constraints.txt | .venv/bin/python
	$(INSTALL) '.[argoverse,ray,heads,logs,mcap,video,dev]'
	touch $@ .venv/demo

.venv/docs: .venv/dev
	$(INSTALL) '.[docs]'
	touch $@

demo: .venv/demo
	$(BIN)/trajformer demo --out demo

quick: .venv/dev
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile $(QUICK)

test: .venv/dev
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/docs
	$(BIN)/python tools/build_docs.py --out site

clean:
	rm -rf demo site build *.egg-info .pytest_cache .mypy_cache .ruff_cache
