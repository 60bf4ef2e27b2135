# make demo: the main job end to end on the small checkpoint that ships with the project.
# make test: lint, types, tests. make bench: speed against plain attention, in five minutes.
# make test-full: the same with all tests, those marked `full` too; before a release.
# make fuzz: the fuzz of the tests with new examples, many more: an hour and more.
# make docs: the pages of docs/ and the docstrings as a site, runs/site/index.html.
# make release: wheel and source archive in dist/, checked as an index would; nothing is published.
# make matrix: every model type of transformers, tried: docs/architectures.{csv,md}, hf_graphattn/architectures/verified.json.
# make matrix-floor: verified.json for the lowest version of transformers allowed.
# make test-floor, make test-latest: the tests with the lowest versions allowed, and with the newest.
# All set up a virtual environment of their own first: .venv, .venv-floor, .venv-latest, .venv-release.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: demo test test-full docs fuzz matrix matrix-floor test-floor test-latest bench lint wheel release clean

demo: $(READY)
	$(BIN)/python finetune/demo/run.py

bench: $(READY)
	$(BIN)/python benchmarks/attention.py --lengths 128 256 512 1024 2048 --memory --budget 15 \
		--output runs/bench/attention.json
	$(BIN)/python benchmarks/inference.py --cases bert gpt2-prefill vit --forms gfsa --budget 12 \
		--output runs/bench/inference.json
	$(BIN)/python benchmarks/decode.py --output runs/bench/decode.json
	$(BIN)/python benchmarks/imports.py --rounds 3 --output runs/bench/imports.json

test: lint
	$(BIN)/python -m pytest -n auto --dist loadgroup

test-full: lint
	$(BIN)/python -m pytest -n auto --dist loadgroup -m ""

docs: $(READY)
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet docs runs/site
	@echo "The site begins at runs/site/index.html."

fuzz: $(READY)
	HF_GRAPHATTN_FUZZ=2000 $(BIN)/python -m pytest tests/fuzz -n auto --timeout 0 -p no:randomly

matrix: $(READY)
	PYTHONPATH=tests $(BIN)/python tests/matrix.py docs/architectures.md

matrix-floor: .venv-floor/.ready
	PYTHONPATH=tests .venv-floor/bin/python tests/matrix.py -

test-floor: .venv-floor/.ready
	.venv-floor/bin/python -m pytest -n auto --dist loadgroup

test-latest: # made anew each time, since what is newest changes
	rm -rf .venv-latest
	$(MAKE) .venv-latest/.ready
	.venv-latest/bin/python -m pytest -n auto --dist loadgroup

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

wheel: $(READY)
	$(BIN)/python -m build --wheel

release: .venv-release/.ready
	rm -rf dist
	.venv-release/bin/python -m build --no-isolation
	.venv-release/bin/twine check --strict dist/*
	.venv-release/bin/cffconvert --validate

.venv-release/.ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check build hatchling twine cffconvert
	@touch $@

# torch first and pinned: an open requirement would pick the newest build, several gigabytes of CUDA.
.venv/.ready: requirements/ci.txt
.venv-floor/.ready: requirements/floor.txt
.venv-latest/.ready: requirements/latest.txt
.venv/.ready .venv-latest/.ready: EXTRAS = dev,libraries
.venv/.ready .venv-floor/.ready .venv-latest/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "hf_graphattn needs Python 3.11 or newer; choose one with: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check \
		-c $(filter requirements/%,$^) torch
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check \
		-c $(filter requirements/%,$^) -e '.[$(or $(EXTRAS),dev)]'
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--target $(@D)/torchvision -c $(filter requirements/%,$^) torchvision # for tests/augmented.py alone
	@touch $@

clean:
	rm -rf .venv .venv-floor .venv-latest .venv-release build dist runs
