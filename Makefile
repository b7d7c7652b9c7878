# One way in. Every target installs what it needs into .venv first; nothing else on the machine is touched.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUN_STAMP := $(VENV)/.installed-for-a-run
# Not quiet: torch and what it brings are 3 GB, which take minutes.
PIP_INSTALL := $(RUN)/python -m pip install --disable-pip-version-check -c constraints.txt

.PHONY: demo run test test-again check test-unit test-contract test-sim test-integration test-kubernetes test-kubernetes-oldest test-cluster test-tenants test-judge test-browser test-slurm test-lowest bench shape fuzz dist docs release release-check install clean

demo: $(RUN_STAMP)
	$(RUN)/holdfast demo $(ARGS)

# All that needs no root and no packages, in ten minutes, and a table of what that does not prove; FULL=1 proves that
# too, as root. Not after $(STAMP): Kubernetes, where it is missing, is built while that installs.
test:
	$(PYTHON) tests/layers/layers.py $(if $(filter-out 0,$(FULL)),all,here)

# Layers again and again, a whole run at a time, until RUNS are there: what failed, and what took long.
# ARGS="--beside 2 integration" for some of them beside two busy loops
RUNS ?= 5
test-again: $(STAMP)
	$(PYTHON) tests/layers/again.py --runs $(RUNS) $(ARGS)

check: $(STAMP)
	$(PYTHON) tests/layers/layers.py check

test-unit test-contract test-sim test-kubernetes test-kubernetes-oldest test-cluster test-tenants test-judge test-browser test-slurm test-lowest: test-%: $(STAMP)
	$(PYTHON) tests/layers/layers.py $*

test-integration: $(STAMP)
	$(PYTHON) tests/layers/layers.py integration kubernetes

# A script's folder comes first on the module path, so one named like a module of Python's own (operator) ends in _.
BENCHES = $(patsubst %_,%,$(filter-out figure linklab meter,$(basename $(notdir $(wildcard bench/*.py)))))
SCRIPT = $(if $(NAME),$(firstword $(wildcard bench/$(NAME).py bench/$(NAME)_.py)))

bench: $(STAMP)
	@test -n "$(NAME)" || { echo "say which: make bench NAME=recovery (one of: $(BENCHES))"; exit 2; }
	@test -n "$(SCRIPT)" || { echo "there is no bench $(NAME); there are: $(BENCHES)"; exit 2; }
	$(RUN)/python $(SCRIPT) $(ARGS)

# How large the code is and how it is cut, beside peers.
shape: $(STAMP)
	$(RUN)/python bench/shape.py $(ARGS)

# An hour from a random seed, or ARGS="SECONDS SEED". `make test` runs half a minute of it.
fuzz: $(STAMP)
	$(RUN)/python tests/unit/api/decoder_fuzzer.py $(ARGS)

# The sdist and the wheel, the same bytes from the same commit, in dist/.
dist: $(STAMP)
	$(RUN)/python release/distributions.py $(ARGS)

# The documentation as a site, in build/site; a warning is an error.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(RUN)/python -m mkdocs build --strict $(ARGS)

# All of that and the chart and images, with bills of materials and checksums. ARGS="-- --prefix registry.example/holdfast/"
release: $(STAMP)
	$(RUN)/python release/release.py $(ARGS)

# The wheel and the sdist, each in a fresh environment outside the checkout, where `holdfast demo` runs. Downloads torch.
release-check: $(STAMP)
	$(RUN)/python release/check.py $(ARGS)

install: $(STAMP)

VENV_PACKAGE = $(shell $(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')

# What a run needs, and on top of it, in the same place, what checks and tests need: of that Python compiles what it
# imports, when it does, which is a small part.
$(STAMP): $(RUN_STAMP)
	$(PIP_INSTALL) --no-compile -e '.[dev]'
	@touch $@

# Whatever ended an earlier attempt, the next one goes on: an environment without a pip that works is made anew, and
# pip repeats what it had not finished.
$(RUN_STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Holdfast needs Python 3.11 or newer; say which with make PYTHON=/path/to/python3.11"; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || { echo "$(PYTHON) cannot make environments: Debian and Ubuntu have that in a package of its own. Install $(VENV_PACKAGE) (as root: apt-get install $(VENV_PACKAGE)), or say another Python with make PYTHON=/path/to/python3.11"; exit 2; }
	@$(RUN)/python -m pip --version > /dev/null 2>&1 || { rm -rf $(VENV) && $(PYTHON) -m venv $(VENV); } || { rm -rf $(VENV); exit 2; }
	@echo "installing torch and what else a run needs into $(VENV): 3 GB to download, 5 GB on the disk, some minutes"
	$(PIP_INSTALL) -e '.[agent,watchdog,console,torch,demo]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
