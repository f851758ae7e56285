# make demo    learn ten classes two at a time, end with a table and a picture in demo/
# make test    the tests
# make lint    ruff and mypy
# make torture the slow tests that break things on purpose
PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= dev
BIN := $(VENV)/bin
comma := ,
READY := $(VENV)/.ready-$(subst $(comma),-,$(EXTRAS))

.PHONY: demo test lint torture clean venv

demo: $(READY)
	$(BIN)/steadfast run split-digits --out demo

test: $(READY)
	$(BIN)/python -m pytest -m "not torture"

torture: $(READY)
	$(BIN)/python -m pytest -m torture

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy

venv: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]"
	@touch $@

clean:
	rm -rf $(VENV) demo build src/*.egg-info
