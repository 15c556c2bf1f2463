# Everything runs in .venv, which `make install` makes: Python 3.11 or newer, CPU or CUDA.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo test lint clean

install: .venv/installed

.venv/installed: setup.py constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --constraint constraints.txt torch
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[argoverse,ray,heads,dev]'
	touch $@

demo: install
	$(BIN)/trajformer demo --out demo

test: install
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf demo build *.egg-info .pytest_cache .mypy_cache .ruff_cache
