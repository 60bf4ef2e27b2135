"""A model that is spread over processes, and the part of a filter that each process holds.

Data parallelism and FSDP take a patched model as any other, so they come after patching. Tensor
parallelism comes before it, with loading. It leaves each process some of an attention's heads, and
of the filter the scalars of these heads: DTensors, which transformers makes whole when it saves.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from hf_graphattn.architectures import AttentionModule
from hf_graphattn.errors import refusal
from hf_graphattn.variants import GraphFilter
from hf_graphattn.variants.base import refuse_tokens

# How a plan of transformers may treat what is inside an attention module. The first is that which
# leaves each process a share of the heads; others join the heads again, or pack several tensors.
SPLIT = "colwise"
STYLES = (SPLIT, "rowwise", "replicate", "replicated_with_grad_allreduce")


def refuse_spread(model: Any) -> None:
    """Raise `GraphAttentionError` if new filters would not be spread over processes as it is."""
    config = getattr(getattr(model, "config", None), "distributed_config", None)
    in_stages = getattr(config, "pp_size", 1) > 1
    is_sharded = any(isinstance(module, FSDPModule) for module in model.modules())
    by_hand = is_spread(model) and not getattr(model, "tp_size", None)
    if in_stages or is_sharded or by_hand:
        name = f"{own_class(model).__name__}, sharded by FSDP, cut into stages or spread by hand"
        allowed = 'a whole model, or one that transformers loaded with tp_plan="auto"'
        raise refusal("model", name, allowed, "Patch the whole model; FSDP shards it afterwards.")


def own_class(module: nn.Module) -> type[nn.Module]:
    """The module's class, without the subclass that FSDP makes of it."""
    cls = type(module)
    if issubclass(cls, FSDPModule):
        return next(base for base in cls.__bases__ if base is not FSDPModule)
    return cls


def is_spread(module: nn.Module) -> bool:
    """Whether processes share a parameter of the module."""
    return bool(_meshes(module))


def heads_mesh(model: Any, layer: AttentionModule) -> DeviceMesh | None:
    """The processes that share the layer's heads; None where each has them all.

    Raises:
        GraphAttentionError: the heads are not shared evenly, or the plan treats them in another
            way.
    """
    meshes = _meshes(layer.module)
    if not meshes:
        return None
    plan = {
        name: style
        for name, style in model.tp_plan.items()
        if fnmatchcase(layer.name, name.rpartition(".")[0])
    }
    others = {name: style for name, style in plan.items() if style not in STYLES}
    if others:
        allowed = f"the styles {', '.join(STYLES)} inside {layer.name}"
        remedy = 'Load the model with tp_plan="auto", or in one process.'
        raise refusal("tp_plan", others, allowed, remedy)
    if SPLIT not in plan.values():
        return None
    (mesh,) = meshes
    if layer.num_heads % mesh.size():
        what = f"the number of heads of {layer.name}"
        allowed = f"a multiple of the {mesh.size()} processes of tensor parallelism"
        raise refusal(what, layer.num_heads, allowed, "Load the model in fewer processes.")
    return mesh


def share_heads(graph_filter: GraphFilter, mesh: DeviceMesh) -> None:
    """Leave each process of the mesh the scalars of its heads.

    Raises:
        GraphAttentionError: the filter has parameters of other kinds, or filters tokens.
    """
    config = graph_filter.variant_config
    refuse_tokens(config, "a model whose heads processes share")
    others = [name for name, _ in graph_filter.named_parameters() if name not in config.scalars]
    if others:
        what = f"the parameters of variant {config.variant!r}"
        allowed = "its scalars alone, where processes share the heads"
        raise refusal(what, others, allowed, "Load the model in one process.")
    graph_filter.is_shared = True
    for name in config.scalars:
        scalar = getattr(graph_filter, name)
        if isinstance(scalar, Tensor):
            shared = distribute_tensor(scalar.detach(), mesh, [Shard(0)], src_data_rank=None)
            is_learned = isinstance(scalar, nn.Parameter)
            setattr(graph_filter, name, nn.Parameter(shared) if is_learned else shared)


def whole(tensor: Any) -> Any:
    """The tensor; gathered, if processes share it, all of which must then call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shared_as(other: Tensor, tensor: Tensor) -> Tensor:
    """This process's part of a whole tensor, if processes share `other`."""
    if not isinstance(other, DTensor):
        return tensor
    return distribute_tensor(tensor, other.device_mesh, other.placements, src_data_rank=None)


def _meshes(module: nn.Module) -> set[DeviceMesh]:
    return {p.device_mesh for p in module.parameters() if isinstance(p, DTensor)}
