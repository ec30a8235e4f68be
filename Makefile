# What a newcomer needs: `make demo` and `make test`. `make help` lists the rest.

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The product is one static binary.
export CGO_ENABLED := 0

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# No version control stamp: it fails where the tree belongs to another user.
BUILD   := go build -buildvcs=false -trimpath -ldflags '-s -w -X main.version=$(VERSION)'
TOOL    := go tool -modfile=tools/go.mod
# One throwaway PostgreSQL for all packages of one run.
PG      := go run ./internal/testkit/pg/pgserver --

# A hung run ends by itself: the packages first, with their stacks, then all of it.
PACKAGE_TIMEOUT := 10m
RUN_TIMEOUT     := 13m

.PHONY: help
help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/mergeflow.
	@$(BUILD) -o bin/mergeflow ./cmd/mergeflow

.PHONY: demo
demo: build ## Show the main job; ARGS=--json for programs.
	@./bin/mergeflow demo $(ARGS)

.PHONY: test
test: ## Everything: lint, then all tests on SQLite and PostgreSQL.
	@scripts/debian-packages git postgresql
	@$(MAKE) --no-print-directory lint
	@# lint has vetted all of it already.
	timeout -k 20s $(RUN_TIMEOUT) $(PG) go test -vet=off -count=1 -timeout $(PACKAGE_TIMEOUT) ./...

.PHONY: race
race: export CGO_ENABLED := 1
race: ## All tests under the race detector (needs a C compiler).
	@scripts/debian-packages git postgresql gcc libc6-dev
	$(PG) go test -count=1 -race -timeout 30m ./...

.PHONY: lint
lint: ## gofmt, go vet, staticcheck (exclusions: staticcheck.conf).
	@unformatted=$$(gofmt -l .) && test -z "$$unformatted" || { echo "gofmt these: $$unformatted"; exit 1; }
	go vet ./...
	go vet -tags=fault ./...
	$(TOOL) staticcheck ./...

.PHONY: sim
sim: export SIM_SEQUENCES ?= 50000
sim: export SIM_SEED ?= $(shell date +%s)
sim: ## Model test of the core: SIM_SEQUENCES random interleavings from SIM_SEED.
	go test -count=1 -timeout 60m -run TestCoreUnderRandomInterleavings -v ./internal/sim

.PHONY: proof
proof: export MERGEFLOW_TEST_PROOF := 1
proof: ## All faults at all points, and more; writes docs/proof.md.
	@scripts/debian-packages git postgresql
	$(PG) go test -json -count=1 -timeout 60m ./internal/proof ./internal/fault ./internal/sim ./internal/saga ./internal/engine ./internal/git \
		./internal/store/... ./internal/forge/... | go run ./internal/proof/report -o docs/proof.md

.PHONY: bench
bench: export BENCH_SCALE ?= 1
bench: export BENCH_PAGE ?= $(CURDIR)/docs/performance.md
bench: ## What the core costs and how that grows: docs/performance.md; half an hour.
	@scripts/debian-packages git postgresql
	go test -vet=off -count=1 -timeout 120m -run '^$$' -bench . -benchtime 1x ./internal/bench

.PHONY: generate
generate: ## Write the files that are made from others.
	go generate ./...

.PHONY: verify
verify: generate ## Fail when a generated file is out of date.
	git diff --exit-code
