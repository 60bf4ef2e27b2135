"""Parameter groups, frozen bases, and `TrainerMixin` under transformers' own Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_speech
import torch
from huggingface_hub import ModelCard
from peft import LoraConfig, get_peft_model
from tiny import MODELS, ROWS, VOCABULARY, inputs
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedModel, Trainer, TrainingArguments, Wav2Vec2ForCTC, set_seed

import hf_graphattn as ga

LEARNED = ga.GFSAConfig(order=4, w_0=-0.01)


def groups(model: PreTrainedModel, **settings: float) -> list[dict]:
    return ga.optimizer_groups(model, 1e-3, weight_decay=0.1, **settings)


def test_optimizer_groups_by_number() -> None:
    model = ga.patch_model(MODELS["BERT"](), LEARNED)
    decayed, plain, scalars = groups(model, filter_learning_rate=5e-2)
    assert [(g["lr"], g["weight_decay"]) for g in (decayed, plain, scalars)] == [
        (1e-3, 0.1),
        (1e-3, 0.0),
        (5e-2, 0.0),
    ]
    names = {id(p): name for name, p in model.named_parameters()}
    assert {names[id(p)].rsplit(".", 1)[1] for p in decayed["params"]} == {"weight"}
    no_decay = {names[id(p)] for p in plain["params"]}
    assert no_decay == {n for n in names.values() if n.endswith("bias") or "LayerNorm" in n}
    assert [p.numel() for p in scalars["params"]] == [4, 4]
    grouped = sum(p.numel() for g in (decayed, plain, scalars) for p in g["params"])
    assert grouped == sum(p.numel() for p in model.parameters())
    assert groups(model)[-1]["lr"] == 1e-3
    fixed = ga.patch_model(MODELS["BERT"](), ga.LaplacianConfig(step=0.1))
    with pytest.raises(ga.GraphAttentionError, match=r"filter_learning_rate is 0\.5; all"):
        groups(fixed, filter_learning_rate=0.5)
    with pytest.raises(ga.GraphAttentionError, match=r"learn no scalar.*trainable"):
        ga.freeze_base(fixed)
    with pytest.raises(ga.GraphAttentionError, match=r"not patched.*patch_model"):
        ga.freeze_base(ga.unpatch_model(fixed))
    assert all(p.requires_grad for p in fixed.parameters())


@pytest.mark.parametrize("architecture", MODELS)
def test_a_frozen_base_leaves_the_scalars_and_the_head(architecture: str) -> None:
    model = ga.patch_model(MODELS[architecture](), LEARNED)
    assert ga.freeze_base(model) is model
    scalars = {name for name, _ in ga.filter_parameters(model)}
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert scalars <= trained
    heads = {name.split(".")[0] for name in trained - scalars}
    if ROWS[architecture].generates:
        assert heads == set()  # a language model's head is pretrained
    else:
        base = model.base_model_prefix
        assert heads - {base}, "the classifier"
        assert all("pooler" in n for n in trained - scalars if n.split(".")[0] == base)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(ga.optimizer_groups(model, 1e-2))
    loss(model).backward()
    optimizer.step()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == trained
    model.requires_grad_(True)
    assert all(p.requires_grad for p in model.parameters())


def loss(model: PreTrainedModel) -> Tensor:
    logits = model(**inputs(model))[0]
    return (logits * torch.randn(logits.shape, generator=torch.Generator().manual_seed(0))).sum()


@pytest.mark.parametrize(
    ("architecture", "head"),
    [
        ("Whisper", "ForAudioClassification"),
        ("T5", "ForQuestionAnswering"),
        ("T5", "ForTokenClassification"),
    ],
)
def test_heads_of_models_that_are_their_own_base_are_trained(architecture: str, head: str) -> None:
    model = ga.freeze_base(ga.patch_model(MODELS[architecture](head=head), LEARNED))
    trained = {n.split(".")[0] for n, p in model.named_parameters() if p.requires_grad}
    assert trained & {"classifier", "projector", "qa_outputs"}
    assert not trained & {"shared", "lm_head"}


def test_the_head_of_a_model_without_input_embeddings_is_trained() -> None:
    """transformers has none to give of a model that reads samples, and says so by an error."""
    known = {"vocab_size": 9, "pad_token_id": 0}
    model = Wav2Vec2ForCTC(tiny_speech.config(**known))
    model = ga.freeze_base(ga.patch_model(model, LEARNED))
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert {"lm_head.weight", "lm_head.bias"} < trained
    assert all(".graph_filter." in name or name.startswith("lm_head.") for name in trained), trained


TWO = ga.GFSAConfig(order=4, trainable=("w_0", "w_K"))


class FilterTrainer(ga.TrainerMixin, Trainer):
    pass


class Rows(Dataset):
    """A label that the first token decides."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(3, VOCABULARY, (9,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": (ids[0] > VOCABULARY // 2).long()}


def base(config: ga.VariantConfig | None = TWO) -> PreTrainedModel:
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
    learned = [scalar for name, scalar in ga.filter_parameters(run.model) if "w_K" in name]
    most = max(scalar.abs().max().item() for scalar in learned)
    assert last["filters/w_K_moved"] == pytest.approx(most)
    learned[0].data.add_(1.0)  # of any layer
    run.log({"loss": 0.0})
    assert moves(run)[-1]["filters/w_K_moved"] > 0.9


def test_the_schedule_and_a_checkpoint_know_the_group(tmp_path: Path) -> None:
    settings = {"filter_learning_rate": 3e-2, "save_steps": 2, "save_strategy": "steps"}
    whole = trainer(base(), tmp_path / "whole", **settings)
    whole.train()
    resumed = trainer(base(), tmp_path / "resumed", **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    loaded, ids = ga.from_pretrained(tmp_path / "whole" / "checkpoint-4"), Rows()[0]["input_ids"]
    assert torch.equal(loaded(ids[None])[0], whole.model.eval()(ids[None])[0])
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

    filters = ga.GraphFilterConfig(graph_attn=TWO, task_type="SEQ_CLS")
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
    filters = ga.GraphFilterConfig(graph_attn=TWO, task_type="SEQ_CLS")
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
