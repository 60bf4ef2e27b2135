"""Parameter groups, frozen bases, and training under transformers' own Trainer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_speech
import torch
from tiny import MODELS, ROWS, VOCABULARY, inputs
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
    Wav2Vec2ForCTC,
    set_seed,
)

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


def test_scalars_share_the_learning_rate_unless_they_have_their_own() -> None:
    model = MODELS["BERT"]()
    assert len(groups(model)) == 2
    assert groups(ga.patch_model(model, LEARNED))[-1]["lr"] == 1e-3
    model = ga.patch_model(MODELS["BERT"](), ga.LaplacianConfig(step=0.1))
    with pytest.raises(ga.GraphAttentionError, match=r"filter_learning_rate is 0\.5; all"):
        groups(model, filter_learning_rate=0.5)


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


def test_a_base_is_not_frozen_for_nothing() -> None:
    model = MODELS["BERT"]()
    with pytest.raises(ga.GraphAttentionError, match=r"not patched.*patch_model"):
        ga.freeze_base(model)
    ga.patch_model(model, ga.LaplacianConfig(step=0.1))
    with pytest.raises(ga.GraphAttentionError, match=r"learn no scalar.*trainable"):
        ga.freeze_base(model)
    assert all(p.requires_grad for p in model.parameters())


class Rows(Dataset):
    """Label 1 if the first token is in the upper half of the vocabulary."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(3, VOCABULARY, (count, 9), generator=generator)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = self.ids[index]
        return {"input_ids": ids, "labels": (ids[0] > VOCABULARY // 2).long()}


def trainer(folder: Path, **settings: object) -> Trainer:
    set_seed(0)
    model = ga.patch_model(MODELS["BERT"](), LEARNED).train()
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=8,
        num_train_epochs=3,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        logging_strategy="no",
        **settings,
    )
    optimizer = torch.optim.AdamW(ga.optimizer_groups(model, 3e-3, filter_learning_rate=3e-2))
    return Trainer(
        model=model,
        args=arguments,
        train_dataset=Rows(40, 0),
        eval_dataset=Rows(16, 1),
        optimizers=(optimizer, None),
        callbacks=[EarlyStoppingCallback(2)],
    )


def test_the_trainer_trains_saves_resumes_and_loads_the_best(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole")
    assert len(whole.optimizer.param_groups) == 3
    whole.train()
    scalars = torch.cat([p for _, p in ga.filter_parameters(whole.model)])
    assert scalars.abs().max() > 0.02
    best = Path(whole.state.best_model_checkpoint)
    loaded = ga.from_pretrained(best)
    batch = {"input_ids": Rows(4, 2).ids}
    whole.model.eval()
    assert torch.equal(loaded(**batch).logits, whole.model(**batch).logits)
    assert json.loads((best / "config.json").read_text())["graph_attn"]["variant"] == "gfsa"

    again = trainer(tmp_path / "again")
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-5"))
    for (name, one), (_, other) in zip(
        whole.model.named_parameters(), again.model.named_parameters(), strict=True
    ):
        assert torch.allclose(one, other, atol=1e-6), name


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
