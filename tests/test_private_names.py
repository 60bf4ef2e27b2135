"""The private names of other packages that are read here, and what to look for if one is gone.

A release may rename any of them. Most would then fail in other tests, far from the cause.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, BertConfig, ParakeetForCTC, PreTrainedModel, Wav2Vec2ForCTC

ROOT = Path(__file__).parent.parent
PACKAGES = ("hf_graphattn", "finetune", "tasks", "tools")
HOOKS = (
    "Look where Module.register_forward_hook, register_forward_pre_hook and "
    "register_state_dict_post_hook put them."
)

# name: (what has it, what to look for when it has not)
PRIVATE: dict[str, tuple[Callable[[], Any], str]] = {
    "_active_collector": (
        lambda: importlib.import_module("transformers.utils.output_capturing"),
        "transformers' capture_outputs sets it while a call records attentions or hidden states. "
        "Look for the ContextVar (it has moved twice) that its recording hooks read.",
    ),
    "_attn_implementation": (
        BertConfig,
        "The name of a config's attention function. Look for what attention modules give to "
        "ALL_ATTENTION_FUNCTIONS.get_interface.",
    ),
    "_attn_implementation_internal": (
        BertConfig,
        "Where a config keeps `_attn_implementation`. Look into that property's setter.",
    ),
    "_weight_conversions": (
        lambda: AutoModel.from_pretrained(ROOT / "finetune/demo/bert"),
        "What from_pretrained leaves on a model that it loaded, and from_config does not.",
    ),
    "_name_or_path": (
        BertConfig,
        "The key of a config's to_dict() for the folder it came from. Look into name_or_path.",
    ),
    "_model_mapping": (
        lambda: AutoModel,
        "From configs to model classes, of an Auto class. Look into its from_pretrained.",
    ),
    "_keys_to_ignore_on_load_unexpected": (
        lambda: PreTrainedModel,
        "The patterns of keys that loading does not report. Look where it reports unexpected keys.",
    ),
    "_get_feat_extract_output_lengths": (
        lambda: Wav2Vec2ForCTC,
        "How many frames a model that hears makes of so many samples. Look into its CTC loss.",
    ),
    "_get_subsampling_output_length": (
        lambda: ParakeetForCTC,
        "The same of models that read features. Look into its CTC loss.",
    ),
    "_get_feature_vector_attention_mask": (
        lambda: Wav2Vec2ForCTC,
        "A mask of frames from one of samples. Look where Wav2Vec2Model.forward makes it.",
    ),
    "_modules": (torch.nn.Module, "The children of a module by name. Look into named_children."),
    "_forward_hooks": (torch.nn.Module, HOOKS),
    "_forward_pre_hooks": (torch.nn.Module, HOOKS),
    "_forward_pre_hooks_with_kwargs": (torch.nn.Module, HOOKS),
    "_state_dict_hooks": (torch.nn.Module, HOOKS),
    "_version": (
        lambda: torch.zeros(1),
        "How often a tensor was changed in place. Look for what autograd compares in its backward.",
    ),
    "_disable_dynamo": (
        lambda: torch,
        "torch.compiler.disable without an import of the compiler. Look into that function.",
    ),
    "_dynamo_marked_constant": (
        lambda: torch.compiler.assume_constant_result(lambda: None),
        "All that torch.compiler.assume_constant_result sets. Look into it.",
    ),
    "_C": (lambda: torch, "Where torch keeps what is below."),
    "_are_functorch_transforms_active": (
        lambda: torch._C,
        "Whether a transform of torch.func runs. Look for what torch.autograd.Function.apply asks.",
    ),
    "_current_level": (
        lambda: torch.autograd.forward_ad,
        "Whether forward-mode derivatives are taken: it is then 0. Look into make_dual.",
    ),
    "_scaled_dot_product_flash_attention_for_cpu": (
        lambda: torch.ops.aten,
        "The fused attention of the CPU, with the log-sum-exp of the scores. Look for what "
        "scaled_dot_product_attention calls there.",
    ),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (
        lambda: torch.ops.aten,
        "Its backward, from output and log-sum-exp. Look into torch's derivatives.yaml.",
    ),
    "_qkv_same_embed_dim": (
        lambda: torch.nn.MultiheadAttention(2, 1),
        "What keeps torch's encoder layers from computing attention by themselves where it is "
        "false. Look into the reasons against the fast path in nn.TransformerEncoderLayer.forward.",
    ),
    "_in_projection_packed": (
        lambda: torch.nn.functional,
        "Queries, keys and values by one weight. Look into torch's multi_head_attention_forward.",
    ),
    "_reset_parameters": (
        lambda: torch.nn.MultiheadAttention(2, 1),
        "By what torch's constructor and torch_geometric's layers start the weights anew. Look for "
        "what nn.MultiheadAttention.__init__ ends with.",
    ),
}


@pytest.mark.parametrize("name", PRIVATE)
def test_a_private_name_is_where_it_is_read(name: str) -> None:
    owner, remedy = PRIVATE[name]
    assert hasattr(owner(), name), f"{name} is gone. {remedy}"


def test_every_private_name_that_is_read_is_in_the_table() -> None:
    trees = [
        ast.parse(p.read_text("utf-8")) for root in PACKAGES for p in (ROOT / root).rglob("*.py")
    ]
    own = {name for tree in trees for name in _defined(tree)}
    read = {name for tree in trees for name in _read(tree)}
    by_string = {"_attn_implementation_internal", "_name_or_path", "_qkv_same_embed_dim"}
    by_string |= {"_weight_conversions"}
    by_string |= {name for name in PRIVATE if name.startswith("_get_")}
    overridden = {"_reset_parameters"}
    assert read - own == PRIVATE.keys() - by_string - overridden


def _read(tree: ast.AST) -> Iterator[str]:
    """Private attributes, and private names that are imported from other packages."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [alias.name for alias in node.names]
        yield from (name for name in names if name.startswith("_") and name[:2] != "__")


def _defined(tree: ast.AST) -> Iterator[str]:
    """Names of the project's own functions, classes, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and ast.unparse(node).startswith("self.")
        ):
            yield node.attr
