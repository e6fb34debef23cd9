# Requires only Python 3.11+ and, for Spark, Java 17+; each target creates the virtual environment if necessary.
.DEFAULT_GOAL := help
.PHONY: help demo up down images-test test soak test-demo test-fast lint format docs docs-site mutants bench bench-quick jar lock lock-docs s3-server s3-server-stop s3a-jars table-engines clean

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Spark for the tests: its processes start in half the CPU time.
FAST_SPARK := .tools/spark/.ready
# The documentation site has a virtual environment of its own.
DOCS := .tools/docs
DOCS_READY := $(DOCS)/.ready
COMPILE = $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-annotate --no-header --quiet
# Tests start hundreds of processes, each of which would compile all its imports again.
unexport PYTHONDONTWRITEBYTECODE

help:  ## Show this list
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY)  ## Run the main job on real flights, kill its driver, recover, compare
	@scripts/need java
	@$(BIN)/python -m examples.flights

up:  ## Start all services in containers, and print their health: Airflow, workers, S3, Spark, Grafana
	@scripts/need docker
	@scripts/need python
	@"$$(scripts/need python --print)" -m scripts.stack up

down:  ## End them; their data stay in named volumes
	@scripts/need docker
	@"$$(scripts/need python --print)" -m scripts.stack down

images-test: $(READY)  ## Build both images on stand-ins for their bases, start all services, lose each in turn
	@scripts/need docker
	@LOCKGATE_TEST_SOAK=1 $(BIN)/pytest -m soak tests/integration/stack $(PYTEST_ARGS)

test: $(READY) $(FAST_SPARK)  ## Test every promise once, on real parts; with Go also on a real S3 server
	@scripts/need java
	@$(BIN)/python -m scripts.run_tests $(PYTEST_ARGS)

soak: $(READY) $(FAST_SPARK)  ## Run all tests, with long storms: for hours, by hand or on a schedule
	@scripts/need java
	@$(BIN)/python -m scripts.run_tests --soak $(PYTEST_ARGS)

test-demo: $(READY) $(FAST_SPARK)  ## Run the demo as a test: check its table, and that no process is left
	@scripts/need java
	@$(BIN)/pytest -m demo tests/integration/test_demo.py

test-fast: $(READY)  ## Run the quick tests of the core: no Spark, Airflow, PostgreSQL or S3 server
	@$(BIN)/python -m scripts.run_tests --fast $(PYTEST_ARGS)

lint: $(READY)  ## Check format, style, types and the import contracts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(READY)  ## Format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(READY)  ## Write the generated pages: operators, API, promises, stores
	@$(BIN)/python -m scripts.operators_page
	@$(BIN)/python -m scripts.api_page
	@$(BIN)/python -m scripts.promises_page
	@$(BIN)/python -m scripts.stores_page

docs-site: $(DOCS_READY)  ## Build the documentation site in build/site; a warning fails it
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet
	@echo "build/site/index.html"

mutants: $(READY)  ## Mutation tests: break one rule of the journal or the blobs at a time; the tests must fail
	@$(BIN)/python -m scripts.mutants

bench: $(READY)  ## Measure, also peers; prints tables, writes docs/benchmarks.md, asserts no time
	@$(BIN)/python -m scripts.with_servers --s3 $(BIN)/python -m benchmarks.job_commit
	@$(BIN)/python -m benchmarks.job_commit_scale
	@$(BIN)/python -m benchmarks.journal
	@$(BIN)/python -m benchmarks.files
	@$(BIN)/python -m benchmarks.files_journal
	@$(BIN)/python -m benchmarks.satellite
	@$(BIN)/python -m benchmarks.tables
	@$(BIN)/python -m benchmarks.pages_files
	@$(BIN)/python -m benchmarks.pages
	@$(BIN)/python -m scripts.with_servers --s3 $(BIN)/python -m benchmarks.blobs --rounds 1 --swept 100000
	@scripts/need java
	@$(BIN)/python -m benchmarks.spark_write
	@$(BIN)/python -m benchmarks.peers write
	@$(BIN)/python -m benchmarks.peers write --latency-ms 80
	@$(BIN)/python -m benchmarks.peers write --rows 200000 --files 1000 --rounds 3
	@$(BIN)/python -m benchmarks.peers commit
	@$(BIN)/python -m benchmarks.peers commit --latency-ms 80 --rounds 3
	@$(BIN)/python -m benchmarks.report

bench-quick: $(READY)  ## Fail if a ratio to a peer is far above its usual value: three minutes
	@scripts/need java
	@$(BIN)/python -m benchmarks.quick

s3a-jars: $(READY)  ## Fetch Spark's jars for S3 (690 MB, once): for a test, and for peers in benchmarks
	@scripts/need java
	@$(BIN)/python -m scripts.s3a_jars .tools/ivy

table-engines: $(READY)  ## Fetch a Spark with Delta's and Iceberg's jars (780 MB, once): for tests of tables
	@scripts/need java
	@$(BIN)/python -m scripts.table_engines .tools/table-engines

jar: $(READY)  ## Compile Spark's commit protocol, jvm/, into the package (with a JDK 17)
	@$(BIN)/python -m scripts.commit_protocol_jar

s3-server: $(READY)  ## Build (with Go) and start a real S3 server for tests; prints its exports
	@$(BIN)/python scripts/s3_server.py start

s3-server-stop: $(READY)  ## Stop the S3 server and keep its data
	@$(BIN)/python scripts/s3_server.py stop

lock: $(READY)  ## Resolve the newest dependencies into requirements.lock, and from it those of the images
	@$(COMPILE) --upgrade --extra dev pyproject.toml --output-file requirements.lock
	@$(COMPILE) --constraint requirements.lock --extra workers pyproject.toml --output-file docker/workers.lock
	@$(COMPILE) --constraint requirements.lock --extra cluster pyproject.toml --output-file docker/airflow.lock
	@echo hatchling | $(COMPILE) --constraint requirements.lock - --output-file docker/build.lock

lock-docs: $(READY)  ## Resolve the newest dependencies of the documentation site
	@$(COMPILE) --upgrade docs/requirements.in --output-file docs/requirements.lock

clean:  ## Remove the virtual environment and every cache
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(DOCS_READY): docs/requirements.lock
	@scripts/need python
	@"$$(scripts/need python --print)" -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install --quiet --require-hashes --requirement $<
	@touch $@

$(FAST_SPARK): $(READY) scripts/fast_spark.py
	@scripts/need java
	@echo "Preparing Spark for the tests in $(@D), once ..."
	@$(BIN)/python -W ignore scripts/fast_spark.py $(@D)
	@touch $@

$(READY): requirements.lock pyproject.toml
	@scripts/need python
	@echo "Installing into $(VENV) (the first time takes a minute) ..."
	@"$$(scripts/need python --print)" -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet uv==0.13.9
	@$(BIN)/uv pip sync --quiet --require-hashes requirements.lock
	@$(BIN)/uv pip install --quiet --no-deps --editable .
	@touch $@
