# Three commands matter: `make try`, `make demo` and `make test`. Each sets up everything it needs, and says what it is doing.

PYTHON ?= python3
VENV := .venv/bin
# Tests run in five processes: three can wait for a drain and one for an API server while the fifth computes.
PYTEST := $(VENV)/python -m pytest -n 5 --durations=20 --durations-min=1
# Histories of `make simulate`, the seed that `make chaos` and `make try` repeat, and the jobs of `make bench-scale`.
N ?= 10000
SEED ?=
# Each test's process would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE
JOBS ?= 100 300 1000

.PHONY: help try demo demo-down test chaos simulate mutants torch-versions gpu-card check quick tests-of docs format generate bench bench-runtime bench-stall bench-saves bench-scale bench-goodput prepare autoscaler for-tests dev release clean

help:
	@echo "make try        half a minute without Kubernetes: two processes train, are interrupted, lose nothing"
	@echo "make demo       boot a real Kubernetes here, drain a node under a training job, show that nothing is lost (ARGS=--fsdp: a sharded model)"
	@echo "make demo-down  remove everything the demo started"
	@echo "make test       set up everything and run all tests, the long ones in a short form"
	@echo "make chaos      all tests in their long form, each time with another seed (SEED=... repeats one)"
	@echo "make simulate   N=... simulated histories on all cores"
	@echo "make mutants    plant one-line bugs, one at a time, and say which test finds each"
	@echo "make torch-versions  the tests of what knows torch's private names, with each older torch that is supported"
	@echo "make gpu-card   what Perdure does on this machine's GPU, as one Markdown page (ARGS=--device=cpu: the same on CPUs)"
	@echo "make bench      measure, print tables, write build/bench/*.json"
	@echo "make bench-runtime  a save and a restore of 1 GiB beside torch.save, safetensors and dcp"
	@echo "make bench-stall  how long a save stops training, beside torch.save and dcp.async_save"
	@echo "make bench-saves  what a save costs by size, length of a step, ranks, sharding and store"
	@echo "make bench-scale  the operator with up to 1,000 jobs on 200 fake nodes (JOBS=... others)"
	@echo "make bench-goodput  jobs share a simulated cluster by Pollux's policy and by ours, with POLLUX_DATA (ARGS=... chooses runs)"
	@echo "make check      format, lint, types, layers, docs, generated files"
	@echo "make docs       build the pages into build/site; a link that leads nowhere is an error"
	@echo "make quick      these, and the tests nearest to what differs from origin/main: 3 minutes at most"
	@echo "make tests-of   FILE=decide/leaving.py prints the test files nearest to a file, nearest first"
	@echo "make format     format the code"
	@echo "make release VERSION=x.y.z  wheel, sdist, chart, CRD, changelog and checksums of the commit into build/release, and tries them"
	@echo "make generate   write the CRD, the reference pages, the pictures and the chart's dashboards"

try: dev
	$(VENV)/python -m e2e.tryout $(if $(SEED),--seed=$(SEED)) $(if $(KILL),--kill)

demo: prepare
	$(VENV)/python -m e2e.demo $(ARGS)

demo-down: dev
	$(VENV)/python -m e2e.demo down

test: for-tests
	$(PYTEST)

chaos: for-tests
	$(PYTEST) --chaos $(if $(SEED),--seed=$(SEED))

simulate: dev
	$(VENV)/python -m tests.simulation run --histories $(N)

mutants: dev
	$(VENV)/python -m tests.mutants

torch-versions: dev
	$(PYTHON) -m e2e.prepare torches
	$(VENV)/python -m tests.support.torch_versions

gpu-card: dev
	$(VENV)/python -m e2e.gpu_card $(ARGS)

bench: prepare
	$(VENV)/python -m e2e.bench step sampling handover moves elastic leader

bench-runtime: dev
	$(VENV)/python -m e2e.bench runtime

bench-stall: dev
	$(VENV)/python -m e2e.bench stall

bench-saves: prepare
	$(VENV)/python -m e2e.bench saves

bench-scale:
	$(PYTHON) -m e2e.prepare scale
	$(VENV)/python -m e2e.bench scale --jobs $(JOBS)

# Each run that is done is kept: a second call goes on.
bench-goodput: dev
	$(VENV)/python -m e2e.bench.pollux $(ARGS)

# Where the cluster cannot run (no root, not Linux) this says what is missing, and the cluster tests skip.
prepare:
	$(PYTHON) -m e2e.prepare all

# That and Karpenter, for tests alone.
autoscaler:
	$(PYTHON) -m e2e.prepare autoscaler

# That, Karpenter and Prometheus, for tests alone.
for-tests:
	$(PYTHON) -m e2e.prepare for-tests

dev:
	$(PYTHON) -m e2e.prepare dev

check: dev
	$(VENV)/python -m tests.support.checks

tests-of: dev
	@$(VENV)/python -m tests.support.checks --tests-of "$(FILE)"

docs: dev
	NO_MKDOCS_2_WARNING=1 $(VENV)/mkdocs build

quick: dev
	$(VENV)/python -m tests.support.checks --nearest

format: dev
	$(VENV)/ruff format .
	$(VENV)/ruff check --fix .

generate: dev
	$(VENV)/python -m perdure_operator.schema.crd --write
	$(VENV)/python -m perdure_operator.schema.reference_page --write
	$(VENV)/python -m perdure_operator.schema.signals_page --write
	$(VENV)/python -m helm.dashboards --write
	$(VENV)/python -m tests.unit.compat.status_defaults --write
	$(VENV)/python -m tests.unit.operator.cli.kubectl.pictures --write

# Of the commit, twice, and installed outside the repository: docs/release.md.
release:
	$(PYTHON) -m e2e.prepare release
	$(VENV)/python -m e2e.release "$(VERSION)"

clean:
	rm -rf build .venv
