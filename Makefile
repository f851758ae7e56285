# make demo      learn ten classes two at a time; ends with a table and a picture in demo/
# make test      the tests that a contributor needs, a few minutes
# make test-all  those and the slow ones
# make lint      ruff and mypy
# make torture   kill runs, fill disks, garble files: half an hour
# make dist      build the wheel and the sdist; try the wheel in a fresh environment, from an empty folder
# make docs      build the site into site/, strictly
# make workflows check the GitHub workflows against their schema
PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= dev
WORKERS ?= 2
BIN := $(VENV)/bin
comma := ,
READY := $(VENV)/.ready-$(subst $(comma),-,$(EXTRAS))
# One thread per test process: two that share two cores finish sooner than one with two threads.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.PHONY: demo test test-all lint torture docs dist workflows clean venv

demo: $(READY)
	$(BIN)/holdfast run split-digits --out demo

test: $(READY)
	$(PYTEST) -m "not slow and not torture"

test-all: $(READY)
	$(PYTEST) -m "not torture"

torture: $(READY)
	$(BIN)/python -m pytest -m torture

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	$(BIN)/python -m mkdocs build --strict --quiet

dist: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dist]"
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python tools/try_wheel.py dist $(RELEASE)

workflows: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dist]"
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

venv: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]"
	@touch $@

clean:
	rm -rf $(VENV) demo build dist site src/*.egg-info
