"""`--peft lora|filters` in the scripts: what is trained, what is saved, and that it loads."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from accelerate import PartialState
from glue_runs import check_loss, flags, written
from peft import PeftModel
from transformers import AutoModelForCTC, AutoModelForSequenceClassification

import hf_graphattn as ga
from finetune import glue
from finetune.errors import Refused
from finetune.models import tuning
from hf_graphattn.model.training import task_head

GFSA = ("--variant", "gfsa", "--order", "4", "--filter_learning_rate", "0.1")


def test_lora_trains_an_adapter_that_loads_onto_the_plain_base(tmp_path: Path) -> None:
    results = glue.main(flags(tmp_path, "cola", *GFSA, "--peft", "lora", "--learning_rate", "0.01"))
    assert results["filter_scalars"] == 8
    assert results["filter_max_abs"] > 0.05
    out = tmp_path / "out"
    names = {path.name for path in out.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", ga.FILTERS_NAME} <= names
    assert "model.safetensors" not in names
    assert "hf_graphattn.load_peft" in (out / "README.md").read_text("utf-8")
    base = AutoModelForSequenceClassification.from_pretrained(tmp_path / "bert")
    loaded = ga.load_peft(base, out)
    check_loss(loaded, out, written(tmp_path)["eval_loss"])
    check_loss(loaded.merge_and_unload(), out, written(tmp_path)["eval_loss"])


def test_filters_alone_leave_the_base_as_it_was(tmp_path: Path) -> None:
    results = glue.main(flags(tmp_path, "cola", *GFSA, "--peft", "filters"))
    out = tmp_path / "out"
    loaded = ga.from_pretrained(out)
    check_loss(loaded, out, results["eval_loss"])
    before = AutoModelForSequenceClassification.from_pretrained(tmp_path / "bert").state_dict()
    after = loaded.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved <= {n for n in before if n.startswith(("classifier", "bert.pooler"))}
    assert "classifier.bias" in moved
    assert results["filter_max_abs"] > 0.05


def test_a_killed_lora_run_resumes_exactly(tmp_path: Path) -> None:
    many = [*GFSA, "--peft", "lora", "--num_train_epochs", "2", "--checkpointing_steps", "epoch"]
    whole = glue.main(flags(tmp_path, "cola", *many))
    first = ("--resume_from_checkpoint", str(min((tmp_path / "out").glob("step_*"))))
    other = ("--output_dir", str(tmp_path / "again"))
    again = glue.main(flags(tmp_path, "cola", *many, *first, *other))
    assert again["eval_loss"] == whole["eval_loss"]
    assert again["filter_max_abs"] == whole["filter_max_abs"]


@pytest.mark.parametrize("architecture", tiny.MODELS)
def test_every_base_layer_gets_lora_and_every_head_is_trained(architecture: str) -> None:
    model = ga.patch_model(tiny.MODELS[architecture](), ga.GFSAConfig())
    heads = set(task_head(model))
    assert bool(heads) != tiny.ROWS[architecture].generates
    arguments = tuning.TuningArguments(peft="lora", lora_r=2)
    PartialState()  # accelerate's logger asks it which process this is
    adapted = tuning.tuned(model, arguments)
    trained = [name for name, p in adapted.named_parameters() if p.requires_grad]
    kinds = {"lora_A", "lora_B", "graph_filter.modules_to_save", *heads}
    assert {kind for kind in kinds if any(kind in name for name in trained)} == kinds
    assert all(any(kind in name for kind in kinds) for name in trained)


def test_lora_of_a_model_without_embeddings_is_saved_and_loads(tmp_path: Path) -> None:
    """PEFT takes its head, lm_head, for an embedding."""
    plain, again = (
        AutoModelForCTC.from_pretrained("finetune/demo/wav2vec2", dtype=torch.float32)
        for _ in range(2)
    )
    adapted = tuning.tuned(plain, tuning.TuningArguments(peft="lora"))
    with torch.no_grad():
        for parameter in adapted.parameters():
            parameter.add_(0.5 * parameter.requires_grad)
    tuning.save(adapted, tmp_path, adapted.state_dict())
    loaded, sounds = PeftModel.from_pretrained(again, tmp_path), torch.randn(1, 4000)
    assert torch.equal(loaded.eval()(sounds).logits, adapted.eval()(sounds).logits)


def test_flags_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"lora_r is 4; allowed: with peft lora only"):
        glue.SCHEMA.parse(flags(tmp_path, "cola", "--lora_r", "4"))
    for variant in ("none", "plat"):
        with pytest.raises(Refused, match=r"peft is 'filters'; .*learns scalars.*--variant, and"):
            glue.main(flags(tmp_path, "cola", "--variant", variant, "--peft", "filters"))
