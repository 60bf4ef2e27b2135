"""One of several CPU processes that train a patched model sharded by FSDP2; see test_sharding."""

from __future__ import annotations

import sys

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import BertConfig, BertForSequenceClassification

import hf_graphattn as ga

# A step that bfloat16 cannot take from 1: its next lower number is 0.996.
START, STEP = 1.0, 1e-4


def main(path: str) -> None:
    """Save the scalars after one step, and the largest difference of the sharded logits."""
    init_process_group("gloo")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=16,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = ga.patch_model(BertForSequenceClassification(config), ga.GFSAConfig(w_K=START))
    inputs = {"input_ids": torch.arange(12).view(2, 6), "labels": torch.tensor([0, 1])}
    with torch.no_grad():
        whole = model(**inputs).logits
    mesh = init_device_mesh("cpu", (2,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in (*model.bert.encoder.layer, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    # Adam's first step is the learning rate, whatever the gradient.
    optimizer = torch.optim.Adam([p for _, p in ga.filter_parameters(model)], lr=STEP, eps=1e-20)
    outputs = model(**inputs)
    outputs.loss.backward()
    optimizer.step()
    found = {
        name: {"local": p.to_local().detach(), "whole": p.full_tensor().detach()}
        for name, p in ga.filter_parameters(model)
    }
    if torch.distributed.get_rank() == 0:
        torch.save({"scalars": found, "gap": (outputs.logits - whole).abs().max().item()}, path)
    destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
