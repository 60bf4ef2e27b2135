"""Settings of every test run: no network, few threads, our dependencies' deprecations seen."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # else each hub call costs seconds of retries
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # the kernels run on the CPU; read when they are imported

torch.set_num_threads(1)  # pytest-xdist runs one process a core
