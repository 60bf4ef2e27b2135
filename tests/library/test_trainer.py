"""`TrainerMixin`: the scalars' group, logs, checkpoints and card under transformers' Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from peft import LoraConfig, get_peft_model
from tiny import MODELS, VOCABULARY, inputs
from torch.utils.data import Dataset
from transformers import PreTrainedModel, Trainer, TrainingArguments, set_seed

import hf_graphattn as ga

LEARNED = ga.GFSAConfig(order=4, trainable=("w_0", "w_K"))


class FilterTrainer(ga.TrainerMixin, Trainer):
    pass


class Rows(Dataset):
    """A label that the first token decides."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(3, VOCABULARY, (9,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": (ids[0] > VOCABULARY // 2).long()}


def base(config: ga.VariantConfig | None = LEARNED) -> PreTrainedModel:
    set_seed(0)
    model = MODELS["BERT"]()
    return model if config is None else ga.patch_model(model, config)


def trainer(model: Any, folder: Path, cls: type = FilterTrainer, **settings: Any) -> Any:
    rate = {k: settings.pop(k) for k in ("filter_learning_rate", "optimizers") if k in settings}
    common = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "logging_steps": 1}
    common |= {"per_device_train_batch_size": 8, "max_steps": 4, "weight_decay": 0.1}
    arguments = TrainingArguments(output_dir=str(folder), **common | settings)
    return cls(model=model, args=arguments, train_dataset=Rows(), **rate)


def moves(run: Any) -> list[dict[str, float]]:
    return [
        {key: value for key, value in row.items() if key.startswith("filters/")}
        for row in run.state.log_history
        if "loss" in row
    ]


def test_the_scalars_have_a_rate_of_their_own_and_no_decay(tmp_path: Path) -> None:
    run = trainer(base(), tmp_path, lr_scheduler_type="constant")
    run.train()
    *others, own = run.optimizer.param_groups
    scalars = {id(scalar) for _, scalar in ga.filter_parameters(run.model)}
    assert {id(p) for p in own["params"]} == scalars
    assert (own["lr"], own["weight_decay"]) == (1e-2, 0.0)
    assert not any(id(p) in scalars for group in others for p in group["params"])
    assert [(g["lr"], g["weight_decay"]) for g in others] == [(5e-5, 0.1), (5e-5, 0.0)]
    grouped = sum(p.numel() for g in run.optimizer.param_groups for p in g["params"])
    assert grouped == sum(p.numel() for p in run.model.parameters())
    first, *_, last = moves(run)
    assert first.keys() == {"filters/w_0_moved", "filters/w_K_moved"}
    assert 0.005 < first["filters/w_K_moved"] < last["filters/w_K_moved"] < 0.05
    most = max(p.abs().max().item() for n, p in ga.filter_parameters(run.model) if "w_K" in n)
    assert last["filters/w_K_moved"] == pytest.approx(most)


def test_the_schedule_and_a_checkpoint_know_the_group(tmp_path: Path) -> None:
    settings = {"filter_learning_rate": 3e-2, "save_steps": 2, "save_strategy": "steps"}
    whole = trainer(base(), tmp_path / "whole", **settings)
    whole.train()
    resumed = trainer(base(), tmp_path / "resumed", **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert whole.optimizer.param_groups[-1]["initial_lr"] == 3e-2
    assert whole.optimizer.param_groups[-1]["lr"] == 0.0  # linear, to its end
    for (name, one), (_, other) in zip(
        whole.model.named_parameters(), resumed.model.named_parameters(), strict=True
    ):
        assert torch.allclose(one, other, atol=1e-6), name


def test_without_moves_it_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frozen = base()
    for _, scalar in ga.filter_parameters(frozen):
        scalar.requires_grad_(False)
    trainer(frozen, tmp_path).train()
    assert "no scalar of the filters of BertFor" in caplog.text
    caplog.clear()
    passed = base()
    weights = [p for n, p in passed.named_parameters() if "graph_filter" not in n]
    optimizers = (torch.optim.AdamW(weights, 1e-3), None)
    run = trainer(passed, tmp_path, optimizers=optimizers)
    run.train()
    assert "no scalar of the filters of BertFor" in caplog.text
    assert moves(run)[-1] == {"filters/w_0_moved": 0.0, "filters/w_K_moved": 0.0}
    caplog.clear()
    for model in (base(), base(None), base(ga.LaplacianConfig(step=0.1))):  # nothing to learn
        trainer(model, tmp_path).train()
    assert "no scalar" not in caplog.text
    with pytest.raises(ga.GraphAttentionError, match="filter_learning_rate is -1"):
        trainer(base(), tmp_path, filter_learning_rate=-1)


def test_checkpoints_of_adapters_load_onto_a_plain_base(tmp_path: Path) -> None:
    """Where the base's scalars are trained beside LoRA, they are in no adapter."""
    model = get_peft_model(base(), LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS"))
    for _, scalar in ga.filter_parameters(model):
        scalar.requires_grad_(True)
    run = trainer(model, tmp_path, save_steps=4)
    run.train()
    assert moves(run)[-1]["filters/w_K_moved"] > 0.01
    loaded = ga.load_peft(base(None), tmp_path / "checkpoint-4").eval()
    batch = inputs(loaded.get_base_model())
    assert torch.equal(loaded(**batch)[0], model.eval()(**batch)[0])

    filters = ga.GraphFilterConfig(graph_attn=LEARNED, task_type="SEQ_CLS")
    model = get_peft_model(base(None), filters)
    run = trainer(model, tmp_path / "filters", save_steps=4)
    run.train()
    assert moves(run)[-1]["filters/w_K_moved"] > 0.01
    folder = tmp_path / "filters" / "checkpoint-4"
    assert not (folder / ga.FILTERS_NAME).exists()
    loaded = ga.load_peft(base(None), folder).eval()
    assert torch.equal(loaded(**batch)[0], model.eval()(**batch)[0])


@pytest.mark.parametrize("is_adapted", [False, True])
def test_the_card_is_the_librarys(is_adapted: bool, tmp_path: Path) -> None:
    filters = ga.GraphFilterConfig(graph_attn=LEARNED, task_type="SEQ_CLS")
    model = get_peft_model(base(None), filters) if is_adapted else base()
    run = trainer(model, tmp_path / "model", hub_model_id="ann/model")
    run.train()
    run.save_model()
    run.create_model_card(tags="mine", dataset_tags="nyu-mll/glue")
    card = ModelCard.load(tmp_path / "model" / "README.md")
    assert "GFSA (arXiv 2312.04234)" in card.text
    assert "| learning_rate | 5e-05 |" in card.text
    assert "| filter_learning_rate | 0.01 |" in card.text
    assert "hf_graphattn" in card.data.tags
    assert is_adapted or "mine" in card.data.tags  # PEFT's card drops a Trainer's tags
    assert card.data.datasets == ["nyu-mll/glue"]
    plain = trainer(base(None), tmp_path / "plain")
    plain.create_model_card()
    assert "graph filter" not in (tmp_path / "plain" / "README.md").read_text()
