"""Settings of every test run: no network, caches and seeds of its own, one thread a process."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import warm

CACHES = "HF_GRAPHATTN_TESTS_CACHES"  # the variable that tells every process of a test run
MOST_WORKERS = 8  # each imports torch and transformers, and takes a gigabyte

for _name in ("HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_MODULES_CACHE", "HF_ASSETS_CACHE"):
    os.environ.pop(_name, None)  # they are in HF_HOME, which `_caches` sets
os.environ |= {
    "HF_HUB_OFFLINE": "1",  # else each hub call costs seconds of retries
    "OMP_NUM_THREADS": "1",  # pytest-xdist runs one process a core
    "TOKENIZERS_PARALLELISM": "false",
    # Of tiny models torch.compile computes shapes in less time than it takes to look them up.
    "TORCH_FAKE_TENSOR_DISPATCH_CACHE": "0",
    # The kernels of the tests run on the CPU. Triton reads this when torch imports it.
    "TRITON_INTERPRET": "1",
}


@contextlib.contextmanager
def _caches() -> Iterator[None]:
    """Nothing is read from the user's caches or written to them, by subprocesses neither."""
    outermost = CACHES not in os.environ
    root = os.environ.setdefault(CACHES, tempfile.mkdtemp(prefix="hf-") if outermost else "")
    # One a worker: `datasets` takes files of one name, size and time for the same.
    os.environ["HF_HOME"] = str(Path(root) / os.environ.get("PYTEST_XDIST_WORKER", "main"))
    yield
    if outermost:
        del os.environ[CACHES]
        shutil.rmtree(root, ignore_errors=True)


_running = contextlib.ExitStack()
_running.enter_context(_caches())  # before a test's file imports what reads them
_running.enter_context(warm.serving())
atexit.register(_running.close)


def pytest_xdist_auto_num_workers() -> int:
    """One a core that this process may use, which `taskset` and containers decide."""
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), MOST_WORKERS)
    return min(os.cpu_count() or 1, MOST_WORKERS)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that share a fixture of their file go to one worker, which makes it once."""
    for item in items if config.pluginmanager.hasplugin("xdist") else ():
        fixtures = getattr(item, "_fixtureinfo", None)
        for definitions in fixtures.name2fixturedefs.values() if fixtures else ():
            if definitions[-1].scope == "module" and not item.get_closest_marker("xdist_group"):
                item.add_marker(pytest.mark.xdist_group(item.path.stem))


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)


def _seed() -> None:
    """A test draws the same random numbers alone, in any order and on any number of workers."""
    import numpy
    import torch

    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


def pytest_configure(config: pytest.Config) -> None:
    config.option.randomly_reset_seed = False  # the order alone is random: `_seed`


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _seed()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    _seed()  # again: which test makes a shared fixture depends on the order


@pytest.fixture(scope="session")
def patched_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A patched BERT, saved; not to be written to."""
    from tiny import MODELS

    import hf_graphattn as ga

    path = tmp_path_factory.mktemp("patched")
    ga.patch_model(MODELS["BERT"](), ga.GFSAConfig(w_K=0.2)).save_pretrained(path)
    return path
