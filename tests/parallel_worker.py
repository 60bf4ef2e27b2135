"""Patched models in one process, or in two that share the batch or the model; see test_parallel.

As a program it is one of the two: it reads what `prepare` wrote, and writes what it found.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from cases import WITH_SCALARS
from tiny import HEADS, VOCABULARY, build
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.distributed import DistributedConfig

import hf_graphattn as ga
from hf_graphattn.model.parallel import whole

# A step that bfloat16 cannot take from 1: its next lower number is 0.996.
START, STEP = 1.0, 1e-4
# Of the first nothing is learned, and the first half of its heads differs from the second; the
# second keeps operands in a cache.
CACHED = {"fixed": ga.PLaTConfig(p=(1.2, 2.9)), "operands": ga.GFSAConfig(w_K=0.4)}


@dataclass(frozen=True)
class Case:
    """A way of two processes, and the model that they train. heads: of each of its attentions."""

    way: str
    architecture: str
    variant: str
    heads: int = HEADS

    @property
    def name(self) -> str:
        return f"{self.way}-{self.architecture}-{self.variant}-{self.heads}"


CASES = (
    *(Case("ddp", "BERT", variant) for variant in WITH_SCALARS),
    *(Case("fsdp", "Llama", variant, heads=3) for variant in WITH_SCALARS),
    Case("fsdp", "Llama", "gfsa", heads=1),
    *(Case("tp", "Llama", variant) for variant in WITH_SCALARS),
    *(Case("tp", architecture, "gfsa") for architecture in ("GPT-NeoX", "Mistral", "Qwen3")),
)


def plain(architecture: str, heads: int = HEADS) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY + 1}  # processes share the last layer evenly
    if heads != HEADS:
        sizes |= {"hidden_size": 8 * heads}
        sizes |= {"num_attention_heads": heads, "num_key_value_heads": heads}
    return build(architecture, **sizes)


def patched(case: Case) -> PreTrainedModel:
    """The case's model, whole. Each head has scalars of its own."""
    variant = WITH_SCALARS[case.variant]
    model = ga.patch_model(plain(case.architecture, case.heads), variant.config)
    with torch.no_grad():
        for name, parameter in ga.filter_parameters(model):
            parameter.copy_(variant.start(case.heads)[name.rpartition(".")[2]])
    return model


def batch(architecture: str = "Llama") -> dict[str, Tensor]:
    ids = torch.randint(3, VOCABULARY, (4, 9), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "labels": ids[:, 0] % 2 if architecture == "BERT" else ids}


def train(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Two steps: their losses, the gradients of the first, and the weights afterwards."""
    inner: Any = getattr(model, "module", model)
    groups = ga.optimizer_groups(inner, 0.01, filter_learning_rate=0.1)
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    found = {}
    for step in range(2):
        loss = model(**inputs).loss
        loss.backward()
        found[f"loss {step}"] = loss.detach()
        if step == 0:
            for name, parameter in inner.named_parameters():
                found[f"gradient {name}"] = whole(parameter.grad).clone()
        optimizer.step()
        optimizer.zero_grad()
    for name, parameter in inner.named_parameters():
        found[f"weight {name}"] = whole(parameter.detach()).clone()
    return found


def prepare(folder: Path) -> None:
    """Write the models that transformers spreads over processes while it loads them."""
    for case in CASES:
        if case.way == "tp":
            patched(case).save_pretrained(folder / case.name)
    for heads in (3, HEADS):
        plain("Llama", heads).save_pretrained(folder / f"plain-{heads}")


class Process:
    """One of the two. folder: what both read, and write to."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder, rank

    def find(self) -> Iterator[tuple[str, Any]]:
        """What it finds, by name."""
        for case in CASES:
            yield case.name, getattr(self, case.way)(case)
        for name, config in CACHED.items():
            yield name, self.logits(ga.patch_model(self.load(tp_plan="auto"), config))
        yield "bfloat16", self.bfloat16()
        yield "mixed precision", self.mixed_precision()
        for name, refused in self.refused().items():
            yield name, said(refused)

    def ddp(self, case: Case) -> dict[str, Tensor]:
        return self.train_rows(DistributedDataParallel(patched(case)), case)

    def fsdp(self, case: Case) -> dict[str, Tensor]:
        model = shard(patched(case))
        found = self.train_rows(model, case)
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(model, options=options)
        if self.rank == 0:
            model.save_pretrained(self.folder / f"{case.name}-saved", state_dict=state)
        return found | self.tell(model, case)

    def tp(self, case: Case) -> dict[str, Any]:
        model = ga.from_pretrained(self.folder / case.name, tp_plan="auto")
        found = train(model, batch(case.architecture))
        model.save_pretrained(self.folder / f"{case.name}-saved")
        return found | self.tell(model, case)

    def train_rows(self, model: nn.Module, case: Case) -> dict[str, Tensor]:
        """Train on this process's half of the batch; the losses are the means of both."""
        rows = slice(2 * self.rank, 2 * self.rank + 2)
        whole_batch = batch(case.architecture).items()
        found = train(model, {name: tensor[rows] for name, tensor in whole_batch})
        for name, tensor in found.items():
            if name.startswith("loss"):
                dist.all_reduce(tensor)
                tensor /= 2
        return found

    def tell(self, model: PreTrainedModel, case: Case) -> dict[str, str]:
        ga.save_filters(model, self.folder / f"{case.name}-filters")
        return {"report": str(ga.report(model)), "card": str(ga.model_card(model, "user/name"))}

    def load(self, heads: int = HEADS, **how: Any) -> PreTrainedModel:
        return AutoModelForCausalLM.from_pretrained(self.folder / f"plain-{heads}", **how)

    @torch.no_grad()
    def logits(self, model: PreTrainedModel) -> Tensor:
        """They are computed in two calls, with a cache."""
        first, second = batch()["input_ids"].split(5, dim=1)
        one = model(first, use_cache=True)
        other = model(second, past_key_values=one.past_key_values)
        return torch.cat([one.logits, other.logits], dim=1)

    def bfloat16(self) -> list[Tensor]:
        model = ga.patch_model(self.load(tp_plan="auto"), ga.GFSAConfig(w_K=START + STEP))
        model.to(torch.bfloat16)
        return [parameter.to_local().detach() for _, parameter in ga.filter_parameters(model)]

    def mixed_precision(self) -> dict[str, Any]:
        """A step of Adam, which is its rate whatever the gradient, under bfloat16 computation."""
        model, inputs = ga.patch_model(plain("Llama"), ga.GFSAConfig(w_K=START)), batch()
        with torch.no_grad():
            expected = model(**inputs).logits
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        shard(model, mp_policy=policy)
        scalars = [parameter for _, parameter in ga.filter_parameters(model)]
        optimizer = torch.optim.Adam(scalars, lr=STEP, eps=1e-20)
        outputs = model(**inputs)
        outputs.loss.backward()
        optimizer.step()
        gap = (outputs.logits - expected).abs().max() / expected.abs().max()
        return {
            "gap": gap.item(),
            "local": [scalar.to_local().detach() for scalar in scalars],
            "whole": [whole(scalar.detach()) for scalar in scalars],
        }

    def refused(self) -> dict[str, Callable[[], Any]]:
        def patch(model: PreTrainedModel) -> Any:
            return ga.patch_model(model, ga.GFSAConfig())

        def distributed(**sizes: Any) -> PreTrainedModel:
            return self.load(distributed_config=DistributedConfig(**sizes))

        def by_hand() -> PreTrainedModel:
            mesh, plan = init_device_mesh("cpu", (2,)), {"self_attn.q_proj": ColwiseParallel()}
            model = self.load()
            for layer in model.model.layers:
                parallelize_module(layer, mesh, plan)
            return model

        inside = "model.layers.*.self_attn."
        joined = {f"{inside}{name}_proj": "colwise_gather_output" for name in "qkv"}
        joined |= {f"{inside}o_proj": "rowwise_split_input"}
        return {
            "three heads": lambda: patch(self.load(3, tp_plan="auto")),
            "joined heads": lambda: patch(distributed(tp_size=2, tp_plan=joined)),
            "FSDP first": lambda: patch(distributed(fsdp_size=2)),
            "pipeline": lambda: patch(distributed(pp_size=2)),
            "by hand": lambda: patch(by_hand()),
            "diagnose": lambda: ga.diagnose(self.load(tp_plan="auto"), batch()),
        }


def shard(model: Any, **settings: Any) -> Any:
    mesh = init_device_mesh("cpu", (2,))
    for module in (*model.model.layers, model):
        fully_shard(module, mesh=mesh, **settings)
    return model


def said(refused: Callable[[], Any]) -> str:
    """The message of the error that a call raises."""
    try:
        refused()
    except ga.GraphAttentionError as error:
        return str(error)
    return "it was not refused"


def main(folder: str, rank: str) -> None:
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=int(rank), world_size=2)
    torch.save(dict(Process(Path(folder), int(rank)).find()), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
