"""Push and load through huggingface_hub's own client, against a hub on the loopback.

Every step runs in a process of its own, as a person's would. The tests share the hub's address and
the people's folders, emptied before each: huggingface_hub is imported once for each address, folder
and other setting.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import warm
from hub_server import HubServer
from safetensors.torch import save_file
from tiny import MODELS, inputs
from transformers import PreTrainedModel

import hf_graphattn as ga

REPO = "user/tiny"


@pytest.fixture(scope="module")
def server() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


@pytest.fixture
def hub(server: HubServer) -> HubServer:
    server.clear()
    return server


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("people")


@pytest.fixture
def folder(people: Path) -> Path:
    """Empty, at the same path for each test."""
    shutil.rmtree(people)
    people.mkdir()
    return people


class Person:
    """Someone with a cache folder of their own, and a file of inputs and expected logits."""

    def __init__(self, hub: HubServer, folder: Path) -> None:
        self.hub, self.folder = hub, folder
        folder.mkdir(parents=True, exist_ok=True)

    def runs(self, code: str, *, may_fail: bool = False, **variables: str) -> str:
        """The code's output, errors included."""
        process = self.starts(code, **variables)
        output, _ = process.communicate(timeout=300)
        assert may_fail == (process.returncode != 0), output
        return output

    def starts(self, code: str, **variables: str) -> subprocess.Popen[str]:
        start = (
            "import sys, torch\nfrom pathlib import Path\n"
            f"folder = Path({str(self.folder.parent)!r})\n"
        )
        return subprocess.Popen(
            [warm.python("transformers"), "-c", start + code],
            env=self.hub.environment(self.folder) | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


CHECK = """
from safetensors.torch import load_file
saved = load_file(folder / "expected.safetensors")
logits = saved.pop("logits")
assert torch.equal(model(**saved).logits, logits), (model(**saved).logits - logits).abs().max()
"""
PUSH = """
import hf_graphattn as ga
from huggingface_hub import EvalResult
model = ga.from_pretrained(folder / "model")
result = EvalResult("text-classification", "glue", "CoLA", "matthews_correlation", 0.5,
                    dataset_split="validation")
print(model.push_to_hub("tiny", base_model="google-bert/bert-base-uncased",
                        datasets=["nyu-mll/glue"], results=[result], license="mit"))
"""


def saved(folder: Path, architecture: str = "BERT") -> PreTrainedModel:
    torch.manual_seed(0)
    model = ga.patch_model(MODELS[architecture](), ga.GFSAConfig(order=4, w_K=0.3))
    model.save_pretrained(folder / "model")
    batch = inputs(model, "right")
    save_file({**batch, "logits": model(**batch).logits}, folder / "expected.safetensors")
    return model


def test_push_explain_and_load(hub: HubServer, folder: Path) -> None:
    saved(folder)
    author = Person(hub, folder / "author")
    assert "/commit/" in author.runs(PUSH)
    assert len(hub.repositories[REPO]) == 1  # all in one commit
    author.runs(PUSH)  # a second push keeps the card too
    files = hub.files(REPO)
    assert set(files) == {"README.md", "config.json", "graph_attn.py", "model.safetensors"}
    card = files["README.md"].decode()
    for words in (
        "GFSA (arXiv 2312.04234)",
        "base_model: google-bert/bert-base-uncased",
        "type: matthews_correlation",
        "license: mit",
    ):
        assert words in card, words
    reader = Person(hub, folder / "reader")
    reader.runs(
        "import hf_graphattn as ga\n"
        'model = ga.from_pretrained("user/tiny")\n'
        'assert not hasattr(model.config, "auto_map")\n' + CHECK
    )
    reader.runs(
        "from huggingface_hub import ModelCard\n"
        'data = ModelCard.load("user/tiny").data\n'
        'assert data.eval_results[0].metric_value == 0.5 and data.model_name == "tiny"\n'
    )
    offline = reader.runs(
        'import hf_graphattn as ga\nmodel = ga.from_pretrained("user/tiny")\n' + CHECK,
        HF_HUB_OFFLINE="1",
    )
    assert "Traceback" not in offline


def test_transformers_alone_loads_it_with_trust_and_refuses_without(
    hub: HubServer, folder: Path
) -> None:
    saved(folder)
    Person(hub, folder / "author").runs(PUSH)
    reader = Person(hub, folder / "reader")
    reader.runs(
        "from transformers import AutoModelForSequenceClassification, AutoModel\n"
        "model = AutoModelForSequenceClassification.from_pretrained(\n"
        '    "user/tiny", trust_remote_code=True)\n'
        "import hf_graphattn as ga\nassert ga.is_patched(model)\n"
        'base = AutoModel.from_pretrained("user/tiny", trust_remote_code=True)\n'
        'assert type(base).__name__ == "BertModel" and ga.is_patched(base)\n' + CHECK
    )
    plain = (
        "from transformers import AutoModelForSequenceClassification\n"
        'AutoModelForSequenceClassification.from_pretrained("user/tiny"{})\n'
    )
    refused = reader.runs(plain.format(""), may_fail=True)
    assert "hf_graphattn.from_pretrained" in refused
    without = (
        "class NotInstalled:\n"
        "    def find_spec(self, name, *rest):\n"
        '        if name.startswith("hf_graphattn"):\n'
        '            raise ModuleNotFoundError(f"No module named {name!r}", name=name)\n'
        "sys.meta_path.insert(0, NotInstalled())\n"
    )
    fresh = Person(hub, folder / "fresh")
    refused = fresh.runs(without + plain.format(", trust_remote_code=True"), may_fail=True)
    assert "pip install hf_graphattn" in refused


def test_saving_may_push(hub: HubServer, folder: Path) -> None:
    saved(folder)
    author = Person(hub, folder / "author")
    author.runs(
        "import hf_graphattn as ga\n"
        'model = ga.from_pretrained(folder / "model")\n'
        'model.save_pretrained(folder / "tiny", push_to_hub=True, commit_message="one")\n'
        'model.save_pretrained(folder / "other", push_to_hub=True, repo_id="tiny", token="t")\n'
    )
    names = {"README.md", "config.json", "graph_attn.py", "model.safetensors"}
    assert set(hub.files(REPO)) == names
    assert {path.name for path in (folder / "tiny").iterdir()} == names - {"README.md"}


def test_filters_and_adapters_load_from_the_hub(hub: HubServer, folder: Path) -> None:
    model = saved(folder)
    ga.save_filters(model, folder / "filters")
    ga.unpatch_model(model).save_pretrained(folder / "plain")
    person = Person(hub, folder / "person")
    person.runs(
        "from huggingface_hub import HfApi\n"
        'HfApi().create_repo("user/filters")\n'
        'HfApi().upload_folder(repo_id="user/filters", folder_path=folder / "filters")\n'
    )
    person.runs(
        "import hf_graphattn as ga\nfrom transformers import AutoModelForSequenceClassification\n"
        'model = AutoModelForSequenceClassification.from_pretrained(folder / "plain")\n'
        'ga.load_filters(model, "user/filters")\n' + CHECK
    )
