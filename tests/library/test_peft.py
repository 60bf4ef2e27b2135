"""Adapters with their own filters: train, save, reload, merge, disable, switch; loading checks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from refusals import untouched
from tiny import MODELS, ROWS, inputs
from transformers import PreTrainedModel

import hf_graphattn as ga
from hf_graphattn.model.filters import NOTE

LEARNED = ga.GFSAConfig(order=4, w_0=-0.01)


def base(architecture: str = "BERT", config: ga.VariantConfig | None = LEARNED) -> PreTrainedModel:
    torch.manual_seed(0)
    model = MODELS[architecture]()
    return model if config is None else ga.patch_model(model, config)


def adapted(architecture: str = "BERT", **settings: object) -> PeftModel:
    """LoRA on every linear layer, and the filters beside it."""
    config = LoraConfig(
        r=2, target_modules="all-linear", modules_to_save=ga.peft_modules(), **settings
    )
    return get_peft_model(base(architecture), config).eval()


def train(model: PeftModel, steps: int = 3, rate: float | None = 5e-2) -> None:
    """Until every trained tensor has moved: LoRA's second factor waits for its first."""
    optimizer = torch.optim.AdamW(ga.optimizer_groups(model, 1e-2, filter_learning_rate=rate))
    batch = inputs(model.get_base_model())
    for _ in range(steps):
        logits = model(**batch)[0]
        weight = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
        (logits * weight).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("architecture", ["BERT", "GPT-2", "Llama", "T5", "ViT"])
def test_an_adapter_trains_saves_reloads_and_merges(architecture: str, tmp_path: Path) -> None:
    model = adapted(architecture)
    batch = inputs(model.get_base_model())
    before = model(**batch)[0]
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    own = {name for name in trained if "graph_filter.modules_to_save.default.w_K" in name}
    assert len(own) == ROWS[architecture].modules
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    train(model)
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, start[n])}
    assert own <= moved <= trained
    after = model(**batch)[0]
    assert not torch.allclose(after, before, atol=1e-3)
    with model.disable_adapter():
        assert torch.equal(model(**batch)[0], before)

    model.save_pretrained(tmp_path)
    loaded = ga.load_peft(base(architecture), tmp_path)
    assert torch.equal(loaded(**batch)[0], after)
    merged = loaded.merge_and_unload()
    assert type(merged) is type(base(architecture))
    assert torch.allclose(merged(**batch)[0], after, atol=1e-4)
    merged.save_pretrained(tmp_path / "merged")
    again = ga.from_pretrained(tmp_path / "merged")(**batch)[0]
    torch.testing.assert_close(again, merged(**batch)[0], atol=1e-5, rtol=1e-5)


def test_adapters_switch_with_their_filters(tmp_path: Path) -> None:
    model = adapted()
    model.add_adapter("second", model.peft_config["default"])
    batch = inputs(model.get_base_model())
    outputs = {}
    for name in ("default", "second"):
        model.set_adapter(name)
        train(model, steps=2 + len(outputs))
        outputs[name] = model(**batch)[0]
    assert not torch.allclose(outputs["default"], outputs["second"], atol=1e-4)
    model.set_adapter("default")
    assert torch.equal(model(**batch)[0], outputs["default"])
    assert "w_K*" in str(ga.report(model))


def test_attentions_are_those_of_the_active_filters() -> None:
    model = adapted()
    train(model)
    batch = inputs(model.get_base_model())
    recorded = model(**batch, output_attentions=True).attentions
    scalars = model.get_base_model().bert.encoder.layer[0].attention.self.graph_filter.w_K
    sums = (scalars - 0.01 + 1.0)[None, :, None]
    torch.testing.assert_close(recorded[0].sum(-1), sums.expand_as(recorded[0].sum(-1)))
    assert scalars.abs().max() > 0.01


def without_notes(folder: Path) -> None:
    """Make an adapter's config what 0.2.0 wrote: nothing in it describes the base's filters."""
    file = folder / "adapter_config.json"
    settings = json.loads(file.read_text())
    names = [name for name in settings["modules_to_save"] if not name.startswith(NOTE)]
    file.write_text(json.dumps(settings | {"modules_to_save": names or None}))


@pytest.mark.parametrize("names", [[], ga.peft_modules()])
def test_an_adapter_says_what_its_base_was_patched_with(
    names: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever `modules_to_save` is: PEFT alone would drop the filters of a plain base silently."""
    config = ga.PolynomialConfig((1e-5, 1.0, -0.2))
    settings = LoraConfig(r=2, target_modules=["query"], modules_to_save=names)
    model = get_peft_model(base(config=config), settings).eval()
    train(model, rate=5e-2 if names else None)
    batch = inputs(model.get_base_model())
    for name in ("first", "second"):  # as a Trainer does at each checkpoint
        model.save_pretrained(tmp_path / name)
    assert ("would drop the filters" in caplog.text) == (not names)
    assert len(caplog.records) == (not names)
    loaded = ga.load_peft(base(config=None), tmp_path / "second")
    assert torch.equal(loaded(**batch)[0], model(**batch)[0])
    with pytest.raises(ga.GraphAttentionError, match=r"base patched with|are not those of"):
        ga.load_peft(base(), tmp_path / "second")
    copied = base(config=None)
    copied.add_adapter(LoraConfig(r=2, target_modules=["query"], modules_to_save=names))
    assert copied.peft_config["default"].modules_to_save == names  # a plain base has no note


def test_the_values_of_a_base_that_was_trained_are_not_guessed(tmp_path: Path) -> None:
    trained = base()
    with torch.no_grad():
        for _, scalar in ga.filter_parameters(trained):
            scalar.fill_(0.3)
    trained.save_pretrained(tmp_path / "base")
    model = get_peft_model(trained, LoraConfig(r=2, target_modules=["query"])).eval()
    model.save_pretrained(tmp_path / "adapter")
    batch = inputs(trained)
    for other in (base(), base(config=None)):
        with pytest.raises(ga.GraphAttentionError, match=r"other values .* from_pretrained"):
            ga.load_peft(other, tmp_path / "adapter")
    loaded = ga.load_peft(ga.from_pretrained(tmp_path / "base"), tmp_path / "adapter").eval()
    assert torch.equal(loaded(**batch)[0], model(**batch)[0])
    ga.save_filters(model, tmp_path / "adapter")
    assert torch.equal(
        ga.load_peft(base(config=None), tmp_path / "adapter").eval()(**batch)[0], model(**batch)[0]
    )


@pytest.mark.parametrize(
    "other",
    [ga.GFSAConfig(layers=(0,)), ga.PLaTConfig(p=2.0, trainable=("p",)), ga.LaplacianConfig()],
)
def test_filters_of_another_config_are_refused(other: ga.VariantConfig, tmp_path: Path) -> None:
    adapted().save_pretrained(tmp_path)
    with pytest.raises(ga.GraphAttentionError, match=r"are not those of BertFor.*differ.*w_K"):
        ga.load_peft(base(config=other), tmp_path)


def test_an_adapter_without_filters_loads_onto_either_base(tmp_path: Path) -> None:
    config = LoraConfig(r=2, target_modules=["query"])
    get_peft_model(base(config=None), config).save_pretrained(tmp_path)
    for each in (base(config=None), base()):
        assert isinstance(ga.load_peft(each, tmp_path), PeftModel)
    assert "graph" not in json.dumps(json.loads((tmp_path / "adapter_config.json").read_text()))


def test_a_failed_load_leaves_the_base_plain(tmp_path: Path) -> None:
    model = adapted()
    model.save_pretrained(tmp_path)
    ga.save_filters(model, tmp_path)
    other = MODELS["BERT"](intermediate_size=64)
    with untouched(other), pytest.raises(ga.GraphAttentionError, match="size mismatch"):
        ga.load_peft(other, tmp_path)
    assert not ga.is_patched(other)
    with pytest.raises(ga.GraphAttentionError, match="load_adapter"):
        ga.load_peft(model, tmp_path)


def test_the_report_follows_disabled_adapters() -> None:
    model = adapted()
    with torch.no_grad():
        for name, scalar in ga.filter_parameters(model):
            scalar.fill_(9.0 if "modules_to_save" in name else 3.0)
    assert "w_K* 9" in str(ga.report(model))
    with model.disable_adapter():
        assert "w_K* 3" in str(ga.report(model))


@pytest.mark.parametrize("config", [LEARNED, ga.LaplacianConfig()])
def test_an_adapter_of_0_2_0_is_refused_and_the_remedies_work(
    config: ga.VariantConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Filters that learn nothing have no tensors in it; its config still asks for them."""
    settings = LoraConfig(r=2, target_modules=["query"], modules_to_save=ga.peft_modules())
    model = get_peft_model(base(config=config), settings).eval()
    if config == LEARNED:
        train(model)
    batch = inputs(model.get_base_model())
    model.save_pretrained(tmp_path)
    without_notes(tmp_path)
    plain = base(config=None)
    with pytest.raises(ga.GraphAttentionError, match=r"trained with graph filters.*patch_model"):
        ga.load_peft(plain, tmp_path)
    assert not ga.is_patched(plain)
    caplog.clear()
    loaded = ga.load_peft(ga.patch_model(plain, config), tmp_path)
    assert torch.equal(loaded(**batch)[0], model(**batch)[0])
    assert str(config) in caplog.text  # which settings it had, nobody can know

    ga.save_filters(model, tmp_path)  # so that the adapter's folder says what its base was
    loaded = ga.load_peft(base(config=None), tmp_path)
    assert torch.equal(loaded(**batch)[0], model(**batch)[0])
    with loaded.disable_adapter(), model.disable_adapter():
        assert torch.equal(loaded(**batch)[0], model(**batch)[0])
    other = base(config=ga.LaplacianConfig(step=0.25))  # of A - I the same tensors: none
    with pytest.raises(ga.GraphAttentionError, match=r"patched with .*Pass the plain|differ in"):
        ga.load_peft(other, tmp_path)


def test_what_is_not_for_models_with_adapters(tmp_path: Path) -> None:
    model = adapted()
    with pytest.raises(ga.GraphAttentionError, match="without adapters"):
        ga.freeze_base(model)
    with pytest.raises(ga.GraphAttentionError, match="merge_and_unload"):
        ga.save_repository(model, tmp_path / "repository", "user/name")
    assert not (tmp_path / "repository").exists()
    with pytest.raises(ga.GraphAttentionError, match="not patched"):
        ga.peft_modules(base(config=None))
