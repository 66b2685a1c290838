# One-word targets; `make help` lists them. PYTHON=... names the interpreter to use.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-real demo-tool test nightly check format generate lock clean \
	cluster-up cluster-status cluster-down cluster-images images check-locks e2e \
	bench-step bench-dispatch bench-startup bench-recovery bench-peers bench-learning bench-placement \
	bench-conversations bench-operator bench-fleet bench-real bench-reshard bench-rank bench-estimator \
	bench-papers bench-updates bench-readings

export PYTHON
BIN := .venv/bin
# An empty value lets Python keep byte code: without it pytest rewrites every test file at every start.
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
BENCH = PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python benchmarks
DEMO := examples/01-sort-grpo.yaml
RUN := rlhf-runs/sort-grpo
REAL_MODEL := rlhf-runs/smollm2
REAL_DEMO := examples/17-sums-grpo.yaml
REAL_RUN := rlhf-runs/sums-grpo
TOOL_DEMO := examples/20-tool-grpo.yaml
TOOL_RUN := rlhf-runs/tool-grpo

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make .venv with everything that tests and checks need
	@tools/setup.sh dev

demo: ## train a tiny model by GRPO and write a report with its learning curve
	@tools/setup.sh run
	@echo "==> Training: rlhf run $(DEMO)"
	@$(BIN)/rlhf run $(DEMO) --output $(RUN) --fresh $(ARGS)
	@echo "==> Learning curves and timeline: $(RUN)/report.html (open it in a browser)"
	@echo "==> The model, in Hugging Face format: $(RUN)/model"

demo-real: ## train a real language model by GRPO on small sums, and compare its answers
	@tools/setup.sh run
	@$(BIN)/python tools/real_model/make_model.py $(REAL_MODEL) --uv "$$(tools/find_uv.sh $(BIN)/python)"
	@echo "==> Training: rlhf run $(REAL_DEMO)"
	@$(BIN)/rlhf run $(REAL_DEMO) --output $(REAL_RUN) --fresh $(ARGS)
	@$(BIN)/python tools/real_model/show_answers.py $(REAL_RUN)
	@echo "==> Learning curves and timeline: $(REAL_RUN)/report.html (open it in a browser)"
	@echo "==> The model, in Hugging Face format: $(REAL_RUN)/model"

demo-tool: ## train a real language model by GRPO to call a calculator, and show conversations
	@tools/setup.sh run
	@$(BIN)/python tools/real_model/make_model.py $(REAL_MODEL) --uv "$$(tools/find_uv.sh $(BIN)/python)"
	@echo "==> Training: rlhf run $(TOOL_DEMO)"
	@$(BIN)/rlhf run $(TOOL_DEMO) --output $(TOOL_RUN) --fresh $(ARGS)
	@$(BIN)/rlhf samples $(TOOL_RUN) --limit 3
	@echo "==> Learning curves and timeline: $(TOOL_RUN)/report.html (open it in a browser)"
	@echo "==> The model, in Hugging Face format: $(TOOL_RUN)/model"

test: setup ## run every test; ARGS=--quick at every save, ARGS="-k name" selects
	@echo "==> Running the tests: pytest -n auto $(ARGS)"
	@$(PYTEST) -n auto $(ARGS)

nightly: setup ## every test, those too long for every change as well, with ten times the examples
	@echo "==> Running the tests: pytest -n auto --nightly $(ARGS)"
	@$(PYTEST) -n auto --nightly $(ARGS)

check: setup ## formatting, lint, types, tiers, generated files
	@echo "==> Formatting: ruff format --check"
	@$(BIN)/ruff format --check .
	@echo "==> Lint: ruff check"
	@$(BIN)/ruff check .
	@echo "==> Types: mypy"
	@$(BIN)/mypy
	@echo "==> Tiers: lint-imports"
	@$(BIN)/lint-imports --no-logo
	@echo "==> Generated files: tools/generate.py --check"
	@$(BIN)/python tools/generate.py --check

format: setup ## format the code and repair what ruff can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

generate: setup ## write what is derived from the contract's models
	@$(BIN)/python tools/generate.py

lock: setup ## resolve the pinned package sets anew
	@tools/lock.sh

cluster-up: ## start Kubernetes on this machine; ARGS="--node --fake-gpus 2" with a real node
	@tools/devcluster/up.sh $(ARGS)

cluster-status: ## what of it runs, in which version, and how to use it
	@tools/devcluster/status.sh

cluster-down: ## stop it and remove what it left
	@tools/devcluster/down.sh

cluster-images: ## build the images without a registry, and give them to its node
	@tools/devcluster/images/build.sh $(ARGS)

images: ## build the images with podman or docker; ARGS=operator builds one
	@images/build.sh $(ARGS)

check-locks: setup ## the pinned sets fit together, also the one for GPUs
	@tools/lock.sh --check

e2e: setup ## a job end to end on a real node of this machine; needs root
	@tools/devcluster/build.sh --node
	@tools/devcluster/images/build.sh
	@echo "==> Running the tests: pytest -m e2e -rP tests/e2e $(ARGS)"
	@$(PYTEST) -m e2e -rP tests/e2e $(ARGS)

clean: ## remove the environment, caches and build outputs; runs are kept
	@rm -rf .venv .venv-tools .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache dist build
	@find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

bench-step: setup ## a step of example 01 against a plain loop without Ray
	@$(BENCH)/step.py $(ARGS)

bench-dispatch: setup ## columns and empty calls against bare Ray actors
	@$(BENCH)/dispatch.py $(ARGS)

bench-conversations: setup ## turns and slow tools against responses of one turn, on one engine
	@$(BENCH)/conversations.py $(ARGS)

bench-startup: setup ## from `rlhf run` to the first tokens, by phase
	@$(BENCH)/startup.py $(ARGS)

bench-recovery: setup ## from the death of a rank to the next step, by phase
	@$(BENCH)/recovery.py $(ARGS)

bench-peers: setup ## the same job under TRL's GRPOTrainer
	@$(BENCH)/peers.py $(ARGS)

bench-real: setup ## a real language model beside TRL, vLLM alone and plain torch; planned memory
	@$(BENCH)/real.py $(ARGS)

bench-learning: setup ## every algorithm's example: accuracy before and after
	@$(BENCH)/learning.py $(ARGS)

bench-placement: setup ## a step of PPO on the same ranks, colocated and split, with timelines
	@$(BENCH)/placement.py $(ARGS)

bench-operator: setup ## many jobs at once under one operator; ARGS="--jobs 1000"
	@PYTHONPATH="$(CURDIR)" $(BENCH)/operator_jobs.py $(ARGS)

bench-fleet: setup ## an operator that starts among 10,000 ended and 1,000 live jobs; ARGS="--live 100"
	@PYTHONPATH="$(CURDIR)" $(BENCH)/operator_fleet.py $(ARGS)

bench-reshard: setup ## weights from training to generation, against gathering them; ARGS=--accounting
	@$(BENCH)/reshard.py $(ARGS)

bench-rank: setup ## one rank without Ray, on a GPU if there is one: transfer, generation, update
	@$(BENCH)/rank.py $(ARGS)

bench-estimator: setup ## predicted seconds of calls beside measured ones, with profiles measured here
	@$(BENCH)/estimator.py $(ARGS)

bench-papers: setup ## what papers report of plans beside what the planner finds; nothing is run
	@$(BENCH)/papers.py $(ARGS)

bench-updates: setup ## actor and critic trained in turn, on halves and in fused pipelines; nothing is run
	@$(BENCH)/updates.py $(ARGS)

bench-readings: setup ## times that others have published beside the planner's; nothing is run
	@$(BENCH)/readings.py $(ARGS)
