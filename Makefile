# One way in. Every target installs what it needs into .venv first; nothing else on the machine is touched.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo run test check test-unit test-contract test-sim test-integration test-cluster test-browser bench install clean

demo: $(STAMP)
	$(RUN)/holdfast demo $(ARGS)

test: check test-contract test-sim test-cluster test-browser test-integration

check: $(STAMP)
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/mypy
	$(RUN)/lint-imports --no-cache
	$(RUN)/pytest -n auto tests/unit

test-unit: $(STAMP)
	$(RUN)/pytest -n auto tests/unit

test-contract: $(STAMP)
	$(RUN)/pytest tests/contract

test-sim: $(STAMP)
	$(RUN)/pytest tests/sim

test-integration: $(STAMP)
	$(RUN)/pytest tests/integration

# One story: what comes after a failure says nothing.
test-cluster: $(STAMP)
	$(RUN)/pytest -x tests/cluster

test-browser:
	@echo "$@: there is nothing of this layer yet: the page comes later"

# A script's folder comes first on the module path, so one named like a module of Python's own (operator) ends in _.
BENCHES = $(patsubst %_,%,$(filter-out figure meter,$(basename $(notdir $(wildcard bench/*.py)))))
SCRIPT = $(if $(NAME),$(firstword $(wildcard bench/$(NAME).py bench/$(NAME)_.py)))

bench: $(STAMP)
	@test -n "$(NAME)" || { echo "say which: make bench NAME=recovery (one of: $(BENCHES))"; exit 2; }
	@test -n "$(SCRIPT)" || { echo "there is no bench $(NAME); there are: $(BENCHES)"; exit 2; }
	$(RUN)/python $(SCRIPT) $(ARGS)

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Holdfast needs Python 3.11 or newer; say which with make PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(RUN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache
