# make demo: the main job end to end on the small checkpoint that ships with the project.
# make test: lint, types, tests. make bench: speed against plain attention, in five minutes.
# All set .venv up first.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: demo test bench lint wheel clean

demo: $(READY)
	$(BIN)/python finetune/demo/run.py

bench: $(READY)
	$(BIN)/python benchmarks/attention.py --lengths 128 256 512 1024 2048 --memory \
		--output runs/bench/attention.json
	$(BIN)/python benchmarks/decode.py --output runs/bench/decode.json
	$(BIN)/python benchmarks/imports.py --rounds 3 --output runs/bench/imports.json

test: lint
	$(BIN)/python -m pytest -n auto --dist loadgroup

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

wheel: $(READY)
	$(BIN)/python -m build --wheel

# torch first and pinned: an open requirement would pick the newest build, several gigabytes of CUDA.
$(READY): pyproject.toml requirements/ci.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "hf_graphattn needs Python 3.11 or newer; choose one with: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements/ci.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements/ci.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv build dist runs
