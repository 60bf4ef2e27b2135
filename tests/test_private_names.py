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
# What has the names that are read. If one is gone, look at what it is, and where it is read.
PRIVATE: dict[str, Callable[[], Any]] = {
    # The ContextVar that transformers' recording hooks read, while a call records attentions.
    "_active_collector": lambda: importlib.import_module("transformers.utils.output_capturing"),
    # The name of a config's attention function, and where its property keeps it.
    "_attn_implementation": BertConfig,
    "_attn_implementation_internal": BertConfig,
    # What from_pretrained leaves on a model that it loaded, and from_config does not.
    "_weight_conversions": lambda: AutoModel.from_pretrained(ROOT / "finetune/demo/bert"),
    # The key of to_dict() for the folder of a config.
    "_name_or_path": BertConfig,
    # From configs to model classes, of an Auto class.
    "_model_mapping": lambda: AutoModel,
    "_keys_to_ignore_on_load_unexpected": lambda: PreTrainedModel,
    # How many frames a model that hears makes of its input: look into the CTC losses.
    "_get_feat_extract_output_lengths": lambda: Wav2Vec2ForCTC,
    "_get_subsampling_output_length": lambda: ParakeetForCTC,
    "_get_feature_vector_attention_mask": lambda: Wav2Vec2ForCTC,
    # The children of a module, and its hooks.
    "_modules": torch.nn.Module,
    "_forward_hooks": torch.nn.Module,
    "_forward_pre_hooks": torch.nn.Module,
    "_forward_pre_hooks_with_kwargs": torch.nn.Module,
    "_state_dict_hooks": torch.nn.Module,
    # How often a tensor was changed in place, which autograd compares in its backward.
    "_version": lambda: torch.zeros(1),
    # torch.compiler.disable without an import of the compiler; and what else the kernels ask.
    "_disable_dynamo": lambda: torch,
    "_dynamo_marked_constant": lambda: torch.compiler.assume_constant_result(lambda: None),
    "_C": lambda: torch,
    "_are_functorch_transforms_active": lambda: torch._C,
    # Whether forward-mode derivatives are taken: it is then 0. Look into make_dual.
    "_current_level": lambda: torch.autograd.forward_ad,
    # The fused attention of the CPU, with the log-sum-exp of the scores.
    "_scaled_dot_product_flash_attention_for_cpu": lambda: torch.ops.aten,
    "_scaled_dot_product_flash_attention_for_cpu_backward": lambda: torch.ops.aten,
    # Where it is false, torch's encoder layers call the attention module.
    "_qkv_same_embed_dim": lambda: torch.nn.MultiheadAttention(2, 1),
    "_in_projection_packed": lambda: torch.nn.functional,
    "_reset_parameters": lambda: torch.nn.MultiheadAttention(2, 1),
}


@pytest.mark.parametrize("name", PRIVATE)
def test_a_private_name_is_where_it_is_read(name: str) -> None:
    assert hasattr(PRIVATE[name](), name), f"{name} is gone: see the comment in {__file__}"


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
