# `make` alone lists the targets. Everything runs in .venv; nothing is installed outside of it.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
# Many short processes start here: with compiled modules each is two seconds faster.
export PYTHONDONTWRITEBYTECODE :=
.DEFAULT_GOAL := help
.PHONY: help setup demo test check unit cluster simulate chaos compose-test bench up down clean lock

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.done  ## install what is needed into .venv (uv if it is there, else venv and pip)

.venv/.done: requirements.lock pyproject.toml ops/setup.sh
	@PYTHON="$(PYTHON)" bash ops/setup.sh

demo: setup  ## start a temporary cluster, make feeds, fill them, show them
	@$(BIN)/stack demo

# Tests of the cluster often wait: three at a time keep two cores busy.
test: setup check  ## all checks and all tests, on a real Kafka and ZooKeeper
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

check: setup  ## lint, format, types, import contracts, docker-compose.yml where docker compose is there
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	@if docker compose version >/dev/null 2>&1; then echo "docker compose config"; docker compose config -q; fi

unit: setup  ## only the tests that need no cluster
	$(BIN)/pytest -n 2 -m "not cluster"

cluster: setup  ## only the tests on the real cluster
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder -m cluster

simulate: setup  ## the engine in memory, with faults at every step: 5,000 seeds (one to two minutes)
	$(BIN)/stack simulate
	$(BIN)/stack simulate --planted

chaos: setup  ## kill and stop everything under load, then check every record (about 5 minutes)
	$(BIN)/stack chaos

compose-test: setup  ## the cluster of docker-compose.yml: built, started, killed under load, verified (about 10 minutes)
	@ops/compose/engine.sh up
	@$(BIN)/stack compose trial; code=$$?; ops/compose/engine.sh down; exit $$code

bench: setup  ## measure feeds and codecs against the bare clients
	$(BIN)/stack bench feeds

up: setup  ## start the stack of this folder
	@$(BIN)/stack up

down: setup  ## stop it
	@$(BIN)/stack down

clean:  ## stop the stack and remove .venv, caches and the stack's data
	@if [ -x $(BIN)/stack ]; then $(BIN)/stack down; fi
	rm -rf .venv .stack build *.egg-info .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

lock:  ## write requirements.lock anew from pyproject.toml (needs uv)
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url \
	  --no-annotate --extra dev --upgrade pyproject.toml -o requirements.lock
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url \
	  --no-annotate -c requirements.lock pyproject.toml -o ops/compose/requirements.lock
