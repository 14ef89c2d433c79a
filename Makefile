# Thin names for what CMake presets and scripts do. `make demo` and `make test` need nothing first.
SHELL := /bin/bash
.DEFAULT_GOAL := help
BUILD := build
EYRIE := $(BUILD)/release/eyrie
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60

.PHONY: help setup setup-test build cuda test-gpu hip models demo test test-fast test-clients fuzz sanitize fmt fmt-check tidy bench peers clean

help:
	@echo "make demo      install, build, quantize, sweep the bundled model, print the table"
	@echo "make test      install, build, run everything CI runs"
	@echo "make build     the program: $(EYRIE)"
	@echo "make cuda      the program with the GPU backend for NVIDIA devices: $(BUILD)/cuda/eyrie (needs CUDA 13's nvcc)"
	@echo "make test-gpu  the GPU backend's tests, on a machine with a GPU      make hip   the backend compiled for gfx90a"
	@echo "make models    quantized variants of the bundled models: $(BUILD)/models/"
	@echo "make sanitize  unit and end-to-end tests under asan+ubsan and tsan"
	@echo "make fuzz      libFuzzer over requests, templates, parsers, tokenizer and safetensors (FUZZ_SECONDS=60 each)"
	@echo "make test-clients  lm_eval, aiperf and vLLM's benchmark client against our server (2 GB of Python)"
	@echo "make bench     micro-benchmarks of the kernels"
	@echo "make peers     the same work by llama.cpp and vLLM's CPU build, and the ratios (an hour the first time)"
	@echo "make fmt       clang-format over the tree      make tidy   clang-tidy over the tree"

setup:
	@tools/setup.sh

setup-test:
	@tools/setup.sh test

build: setup
	@cmake --preset release >$(BUILD)-release-configure.log 2>&1 || { cat $(BUILD)-release-configure.log; exit 1; }
	@rm -f $(BUILD)-release-configure.log
	@cmake --build --preset release -j $(JOBS)

cuda: setup
	@cmake --preset cuda >$(BUILD)-cuda-configure.log 2>&1 || { cat $(BUILD)-cuda-configure.log; exit 1; }
	@rm -f $(BUILD)-cuda-configure.log
	@cmake --build --preset cuda -j $(JOBS)

test-gpu: setup-test
	@tools/gpu_test.sh

hip:
	@tools/setup.sh hip
	@cmake --preset hip >/dev/null && cmake --build --preset hip -j $(JOBS)

models: build
	@tools/make_models.sh

demo: models
	@tools/demo.sh

test:
	@tools/test.sh

sanitize: setup-test
	@tools/sanitize.sh

fuzz: setup-test
	@tools/fuzz.sh $(FUZZ_SECONDS)

test-clients: build
	@tools/clients.sh

fmt: setup-test
	@git ls-files 'src/*.h' 'src/*.cpp' 'tests/*.h' 'tests/*.cpp' 'bench/*.h' 'bench/*.cpp' 'src/*.cu' 'src/*.cuh' | xargs clang-format -i

fmt-check:
	@git ls-files 'src/*.h' 'src/*.cpp' 'tests/*.h' 'tests/*.cpp' 'bench/*.h' 'bench/*.cpp' 'src/*.cu' 'src/*.cuh' | xargs clang-format --dry-run -Werror

tidy: setup-test
	@tools/tidy.sh

bench: setup-test
	@cmake --preset bench >/dev/null && cmake --build --preset bench -j $(JOBS) --target ops_bench formats_bench
	@$(BUILD)/bench/ops_bench
	@$(BUILD)/bench/formats_bench

peers: build
	@python3 tools/peers/run.py

clean:
	rm -rf $(BUILD)
