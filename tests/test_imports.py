"""What `import hf_graphattn` imports, and what it does all the same; in fresh processes."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import hf_graphattn as ga

FORBIDDEN = {"triton", "flash_attn", "datasets", "accelerate", "peft", "tasks", "finetune"}


def run(script: str, *arguments: object) -> list[str]:
    """The words that a script prints in a process of its own."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_import_adds_four_small_modules_to_that_of_transformers() -> None:
    script = "import sys, transformers\nbefore = set(sys.modules)\nimport hf_graphattn\n"
    added = set(run(script + "print(*set(sys.modules) - before)"))
    own = {f"hf_graphattn.{name}" for name in ("errors", "registration", "version")}
    assert added == {"hf_graphattn", *own}


def test_a_config_needs_torch_and_the_rest_transformers() -> None:
    """Each name imports what it needs; what is not there is no reason to import anything."""
    script = """
import sys
import hf_graphattn as ga
assert not hasattr(ga, "missing") and not hasattr(ga, "_missing")
assert "torch" not in sys.modules
assert ga.GFSAConfig(order=4).order == 4 and not hasattr(ga, "HeatConfig")
assert "torch" in sys.modules and "transformers" not in sys.modules
assert ga.patch_model is ga.patching.patch_model
assert "transformers.modeling_utils" in sys.modules
from hf_graphattn import *
from hf_graphattn import backends
assert load_filters is ga.load_filters and backends is ga.backends
"""
    assert run(script) == []


def test_no_name_imports_an_extra() -> None:
    """In a fresh process; what transformers itself imports is not ours to forbid."""
    script = """
import sys
from transformers import AutoConfig, AutoModel, AttentionMaskInterface, PreTrainedModel
import transformers.core_model_loading, transformers.models.auto.modeling_auto
before = set(sys.modules)
from hf_graphattn import *
print(*{name.split(".")[0] for name in set(sys.modules) - before})
"""
    imported = set(run(script))
    assert "hf_graphattn" in imported
    assert imported.isdisjoint(FORBIDDEN)


def test_every_public_name_is_listed_for_type_checkers_too() -> None:
    tree = ast.parse(Path(ga.__file__).read_text("utf-8"))
    listed = {
        (statement.module, alias.name, alias.asname)
        for block in tree.body
        if isinstance(block, ast.If)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert listed == {(module, name, name) for name, module in ga._MODULE_OF.items()}
    assert set(ga.__all__) == {*ga._MODULE_OF, "GraphAttentionError", "__version__"}
    for name, module in ga._MODULE_OF.items():
        assert getattr(ga, name) is getattr(import_module(f"hf_graphattn.{module}"), name)
    assert set(ga.__all__) < set(dir(ga))


REFUSED = """
model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1])
try:
    model(torch.tensor([[3]]))
except ValueError as error:
    assert "hf_graphattn.from_pretrained" in str(error), error
    print("refused")
utils = sys.modules["transformers.modeling_utils"]
assert type(utils.__loader__).__name__ == type(utils.__spec__.loader).__name__ == "SourceFileLoader"
assert not any(type(finder).__module__.startswith("hf_graphattn") for finder in sys.meta_path)
"""
IMPORTS = {
    "before": "import hf_graphattn\nfrom transformers import AutoModelForSequenceClassification",
    "after": "from transformers import AutoModelForSequenceClassification\nimport hf_graphattn",
    "between": "import transformers\nimport hf_graphattn\n"
    "from transformers import AutoModelForSequenceClassification",
    "before the parts": "import hf_graphattn\nimport transformers.masking_utils\n"
    "import transformers.generation.utils\nimport transformers.models.bert.modeling_bert\n"
    "from transformers import AutoModelForSequenceClassification",
}


@pytest.mark.parametrize("order", IMPORTS)
def test_the_import_is_enough_for_plain_loading_to_be_refused_in_our_words(
    order: str, patched_folder: Path
) -> None:
    """Whichever comes first; no other line of ours runs. The import hook leaves nothing behind."""
    assert run(f"import sys, torch\n{IMPORTS[order]}\n{REFUSED}", patched_folder) == ["refused"]


def test_an_import_of_transformers_that_fails_may_be_tried_again() -> None:
    script = """
import sys
import hf_graphattn
sys.modules["transformers.generation"] = None  # so that importing it raises
try:
    import transformers.modeling_utils
except ImportError:
    del sys.modules["transformers.generation"]
import transformers.modeling_utils
assert "graph_attn" in transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
print("registered")
"""
    assert run(script) == ["registered"]
