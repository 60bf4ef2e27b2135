"""Settings of every test run: no network, few threads, our dependencies' deprecations seen."""

import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # else each hub call costs seconds of retries
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

if not torch.cuda.is_available():
    # The kernels then run on the CPU. Triton reads this when it is imported: transformers does it.
    os.environ["TRITON_INTERPRET"] = "1"

from tiny import MODELS

import hf_graphattn as ga

torch.set_num_threads(1)  # pytest-xdist runs one process a core


@pytest.fixture(scope="session")
def patched_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A patched BERT, saved; not to be written to."""
    path = tmp_path_factory.mktemp("patched")
    ga.patch_model(MODELS["BERT"](), ga.GFSAConfig(w_K=0.2)).save_pretrained(path)
    return path
