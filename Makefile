# What people type. Everything runs in .venv, which is made once, from requirements.lock.
#   make demo [VIDEOS=dir]   the whole main job, from raw video to generated video
#   make test [ARGS=...]     all tests that need no GPU
#   make check               format, lint, types, import rules
#   make format              rewrites the code in the project's format
#   make clean               removes .venv, caches and demo_out*

.DEFAULT_GOAL := help
.SUFFIXES:
MAKEFLAGS += --no-print-directory

# The first Python that is new enough; `make PYTHON=/path/to/python3.12 ...` chooses another.
CANDIDATES := python3 python3.11 python3.12 python3.13
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(firstword $(foreach p,$(CANDIDATES),$(shell $(p) -c '$(NEW_ENOUGH)' 2>/dev/null && echo $(p))))
BIN := .venv/bin
LOG := .venv/install.log

.PHONY: help demo test check format clean venv
help:
	@sed -n 's/^#   //p' Makefile

demo: venv
	@$(BIN)/vfm demo $(if $(VIDEOS),'videos=$(VIDEOS)')

test: venv
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

check: venv
	@echo "format";       $(BIN)/ruff format --check --quiet .
	@echo "lint";         $(BIN)/ruff check --quiet .
	@echo "types";        $(BIN)/pyright --pythonpath $(BIN)/python
	@echo "import rules"; $(BIN)/lint-imports --no-logo > .venv/imports.log 2>&1 || { cat .venv/imports.log; exit 1; }
	@echo "all is well"

format: venv
	@$(BIN)/ruff format --quiet . && $(BIN)/ruff check --fix --quiet .

clean:
	rm -rf .venv build dist *.egg-info demo_out demo_out_* .pytest_cache .ruff_cache .import_linter_cache .hypothesis

# Two stamps: packages change with the lock, vfm itself (its console script) with pyproject.toml.
venv: .venv/vfm.stamp

.venv/vfm.stamp: .venv/lock.stamp pyproject.toml
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
		--editable . > $(LOG) 2>&1 || { cat $(LOG); echo "error: vfm itself did not install" >&2; exit 1; }
	@touch $@

.venv/lock.stamp: requirements.lock
	@$(if $(PYTHON),,echo "error: Python 3.11 or newer is needed; install it, or name one: make PYTHON=/path/to/python3.11" >&2; exit 1)
	@$(PYTHON) -c '$(NEW_ENOUGH)' || { echo "error: $(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "making .venv from requirements.lock, once; this takes some minutes"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock > $(LOG) 2>&1 \
		|| { tail -n 30 $(LOG); echo "error: requirements.lock did not install; the whole log is $(LOG)" >&2; exit 1; }
	@touch $@
