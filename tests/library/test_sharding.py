"""FSDP2 on two CPU processes: the filter's scalars stay float32 under bfloat16 computation."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import shard_worker
import torch
import warm


def test_the_scalars_survive_sharding_and_bfloat16(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(warm.python("transformers"), "-m", "torch.distributed.run", "--standalone"),
            *("--nproc_per_node", "2", shard_worker.__file__, str(tmp_path / "found.pt")),
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "found.pt", weights_only=True)
    (scalar,) = found["scalars"].values()
    assert scalar["whole"].dtype == scalar["local"].dtype == torch.float32
    assert (scalar["local"].shape, scalar["whole"].shape) == ((2,), (4,))
    moved = (scalar["whole"] - shard_worker.START).abs()
    torch.testing.assert_close(moved, torch.full((4,), shard_worker.STEP), rtol=1e-2, atol=0)
    # The sharded model computes in bfloat16, and the same.
    assert 0 < found["gap"] < 0.02
