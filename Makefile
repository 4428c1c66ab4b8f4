# Every target works alone in a fresh clone: what it needs first, it makes first. `make` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Tests start processes by the hundred: each would compile anew all that it imports.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
STAMP := .venv/.installed
# Four, for two cores: tests wait for disks, for leases to end and for processes that start.
# One that crashes ends the run: xdist 3.8 may wait forever after it has replaced it (its issue 1378).
IN_PROCESSES := -n 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: install
install: java $(STAMP) ## create .venv and install the engine with all that tests, demo and bench need

.PHONY: java
java:
	@java=$${JAVA_HOME:+$$JAVA_HOME/bin/}java; \
	version=$$($$java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1 || true); \
	if [ "$${version:-0}" -lt 17 ]; then \
	  echo "Java 17 is missing: install openjdk-17-jre-headless (Debian, Ubuntu), then run make again." >&2; \
	  exit 1; \
	fi

$(STAMP): pyproject.toml constraints.txt
	@if [ ! -x $(BIN)/python ]; then \
	  for python in python3.11 python3.12 python3.13 python3; do \
	    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	      echo "creating .venv with $$python"; exec $$python -m venv .venv; \
	    fi; \
	  done; \
	  echo "Python 3.11 is missing: install Python 3.11 or newer with its venv module, then run make again." >&2; exit 1; \
	fi
	@echo "installing into .venv (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

.PHONY: test
test: lint imports ## lint, type-check, check the imports between packages, run the tests
	@$(MAKE) --jobs=2 types unit

.PHONY: lint
lint: install ## ruff: style and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

.PHONY: types
types: install ## mypy --strict
	@$(BIN)/mypy

.PHONY: imports
imports: install ## import-linter: imports point down the house
	@$(BIN)/lint-imports --no-logo

.PHONY: unit
unit: install ## pytest in four processes, without the long tests
	@$(BIN)/pytest $(IN_PROCESSES) --durations=20

.PHONY: test-long
test-long: install ## the tests that kill, cut power, fill disks, install or last long
	@$(BIN)/python -m tests.kit.s3_server
	@$(BIN)/pytest $(IN_PROCESSES) --durations=20 -m "long and not soak and not peer"

.PHONY: coverage
# By their own tests and the simulator's; what Spark and clients reach of them does not count.
coverage: install ## branch coverage of the cores that decide only
	@$(BIN)/pytest $(IN_PROCESSES) --cov --ignore tests/ledger/journal/test_mutants.py tests/ledger/journal \
	  tests/topic/data_path/test_index.py tests/broker/dispatch tests/broker/observe tests/broker/producing tests/broker/topics

.PHONY: simulate
simulate: install ## run the journal's protocol in the simulator; SECONDS=3600, SEED=n
	@$(BIN)/python -m tests.simulators.journal --seconds $(or $(SECONDS),3600) $(if $(SEED),--seed $(SEED))

.PHONY: seeds
# The other tests use the same seeds in each run, so that no change fails by a case that it did not make.
seeds: install ## the tests of all simulators, under fresh seeds; a seed that fails is printed
	@PULSARPY_TEST_SEEDS=fresh $(BIN)/pytest $(IN_PROCESSES) -m "not soak or soak" tests/metadata/log/test_simulated_log.py \
	  tests/broker/cluster/test_simulated_ownership.py tests/broker/cluster/test_load.py \
	  tests/ledger/journal/test_simulation.py tests/ledger/journal/test_mutants.py tests/history_table/test_sequences.py

.PHONY: endurance
endurance: install ## disturb three brokers under load, 50 times in each way; continues docs/endurance.jsonl; TIMES=n ONLY=store/cut SINCE=commit
	@$(BIN)/python -m tests.broker.cluster.endurance $(if $(TIMES),--times $(TIMES)) $(if $(ONLY),--only $(ONLY)) \
	  $(if $(SINCE),--since $(SINCE))

.PHONY: soak
soak: install ## long tests at full length, minutes to hours
	@$(BIN)/pytest -m soak -o faulthandler_timeout=7200

.PHONY: demo
demo: install ## replay the flights of 2013 through a topic; leaves demo-root/ behind
	@$(BIN)/python jobs/flights.py

.PHONY: bench
bench: install ## measure beside Parquet, Delta and Kafka; writes docs/benchmarks.md
	@$(BIN)/python -m bench.run

.PHONY: test-lowest
# The lower end of every range in pyproject.toml, in an environment with a pip of its own; TESTS="tests/ledger" runs some.
test-lowest: install ## run the tests with the lowest versions that pyproject.toml allows
	@$(BIN)/uv venv --quiet --clear --seed --python $(BIN)/python .venv-lowest
	@$(BIN)/uv pip install --quiet --python .venv-lowest --resolution lowest-direct --editable . \
	  -r pyproject.toml --extra test
	@.venv-lowest/bin/pytest $(IN_PROCESSES) -m "not soak and not peer" $(or $(TESTS),tests)

.PHONY: docs
docs: install ## build the documentation's site into site/, and check its links
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-docs
	@$(BIN)/uv pip install --quiet --python .venv-docs --constraint constraints.txt --group docs
	@.venv-docs/bin/mkdocs build --quiet --strict

.PHONY: conformance
# The suites connect to ports 6650 and 8080; root gets a network namespace where they are taken, or hosts outside refuse.
conformance: install ## the clients' official suites; PYTHON_CLIENT_TESTS=folder, BROKER=pulsar, SUITE=name
	@$(BIN)/python -m conformance.run --broker $(or $(BROKER),ours) $(if $(SUITE),--suite $(SUITE))

.PHONY: flows
# At full length, as far as Go, Maven, Rust and protoc are there; `make test-long` has a short run of the same.
flows: install ## official clients on several brokers while bundles move; BROKERS=3, SECONDS=300, MOVE_EVERY=60
	@FLOW_BROKERS=$(or $(BROKERS),3) FLOW_SECONDS=$(or $(SECONDS),300) FLOW_MOVE_EVERY=$(or $(MOVE_EVERY),60) \
	  $(BIN)/pytest -m "long or soak" tests/broker/cluster/test_official_clients.py -o faulthandler_timeout=7200

.PHONY: replication
replication: install ## a real Pulsar replicates to a broker, and its proxy serves brokers; needs Maven
	@$(BIN)/pytest -m peer tests

.PHONY: protocol
# Code that an old protoc generated runs with every later protobuf, so this protoc is that of the lowest protobuf.
protocol: $(STAMP) ## generate the code of Pulsar's protobuf messages
	@$(BIN)/uv run --quiet --no-project --isolated --python $(BIN)/python --with grpcio-tools==1.71.2 \
	  python -m grpc_tools.protoc -I pulsar_on_spark/protocol \
	  --python_out=pulsar_on_spark/_generated --pyi_out=pulsar_on_spark/_generated \
	  pulsar_entry.proto pulsar_commands.proto

.PHONY: format
format: install ## let ruff format the code and fix what it can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: clean
clean: ## remove .venv, caches and what demo and bench wrote
	rm -rf .venv .venv-docs .venv-lowest site .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage .import_linter_cache build dist \
	  demo-root bench-work conformance-work spark-warehouse metastore_db derby.log artifacts
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
