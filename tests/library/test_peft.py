"""PEFT: adapters of other methods with filters of their own, and filters as a method."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cases import TOKEN_CASES, VARIANT_CASES
from edges import product
from peft import AutoPeftModel, LoraConfig, PeftModel, get_peft_model
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


@pytest.mark.parametrize("architecture", ROWS)
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


GFSA = ga.GFSAConfig(order=3, w_0=0.1, trainable=("w_0", "w_K"))
STEP = ga.LaplacianConfig(step=0.4, trainable=("step",))
ALL = {name: case.config for name, case in (VARIANT_CASES | TOKEN_CASES).items()}


def new_base(architecture: str = "GPT-2") -> PreTrainedModel:
    torch.manual_seed(0)
    return MODELS[architecture]().eval()


def filtered(
    config: ga.VariantConfig = GFSA, model: PreTrainedModel | None = None, **settings: object
) -> PeftModel:
    peft_config = ga.GraphFilterConfig(graph_attn=config, **settings)
    return get_peft_model(new_base() if model is None else model, peft_config).eval()


def train_filters(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Two steps of what is trained; returns the logits after them."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, 0.5)
    for _ in range(2):
        logits = model(**batch)[0]
        weight = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
        (logits * weight).mean().backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model(**batch)[0].detach()


@pytest.mark.parametrize(
    ("architecture", "variant"),
    [*product(["GPT-2", "BERT", "T5"], VARIANT_CASES), *(("BERT", name) for name in TOKEN_CASES)],
)
def test_an_adapter_is_its_scalars_and_loads_onto_a_plain_base(
    architecture: str, variant: str, tmp_path: Path
) -> None:
    plain, config = new_base(architecture), ALL[variant]
    batch = inputs(plain)
    plain.requires_grad_(False)  # as PEFT does: torch chooses other kernels for gradients
    before = plain(**batch)[0]
    model = filtered(config, plain)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert all(".graph_filters.default." in name for name in trained)
    assert len(trained) == len(config.trainable) * len(ga.graph_filters(model))
    after = train_filters(model, batch) if trained else model(**batch)[0]
    assert not torch.allclose(after, before, atol=1e-3)
    if config.at_neutral() is None:
        with model.disable_adapter(), pytest.raises(ga.GraphAttentionError, match=r"unload\(\)"):
            model(**batch)
    else:
        with model.disable_adapter():
            torch.testing.assert_close(model(**batch)[0], before, atol=2e-5, rtol=2e-5)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "adapter_model.safetensors").stat().st_size < 4000
    for load in (PeftModel.from_pretrained, ga.load_peft):
        loaded = load(new_base(architecture), tmp_path).eval()
        assert torch.equal(loaded(**batch)[0], after)
    assert torch.equal(model.unload()(**batch)[0], before)
    assert not ga.is_patched(plain)


def test_a_new_head_is_saved_with_them(tmp_path: Path) -> None:
    model = filtered(model=new_base("BERT"), task_type="SEQ_CLS")
    batch = inputs(model.get_base_model())
    after = train_filters(model, batch)
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(new_base("BERT"), tmp_path)
    assert torch.equal(loaded(**batch)[0], after)
    assert (
        "classifier"
        in json.loads((tmp_path / "adapter_config.json").read_text())["modules_to_save"]
    )


def test_transformers_own_methods_and_peft_auto_classes(tmp_path: Path) -> None:
    new_base().save_pretrained(tmp_path / "base")
    own = type(new_base())
    model = filtered(STEP, own.from_pretrained(tmp_path / "base").eval())
    batch = inputs(model.get_base_model())
    before = new_base()(**batch)[0]
    after = train_filters(model, batch)
    model.save_pretrained(tmp_path / "adapter")
    auto = AutoPeftModel.from_pretrained(tmp_path / "adapter").eval()
    assert torch.equal(auto(**batch)[0], after)
    loaded = own.from_pretrained(tmp_path / "base").eval()
    loaded.load_adapter(str(tmp_path / "adapter"))
    assert torch.equal(loaded(**batch)[0], after)
    loaded.disable_adapters()
    torch.testing.assert_close(loaded(**batch)[0], before, atol=2e-5, rtol=2e-5)
    loaded.enable_adapters()
    loaded.save_pretrained(tmp_path / "again")
    assert torch.equal(PeftModel.from_pretrained(new_base(), tmp_path / "again")(**batch)[0], after)


def test_adapters_switch_merge_and_copy(tmp_path: Path) -> None:
    model = filtered(STEP)
    batch = inputs(model.get_base_model())
    first = train_filters(model, batch)
    model.add_adapter("second", ga.GraphFilterConfig(graph_attn=STEP))
    model.set_adapter("second")
    fresh = ga.patch_model(new_base(), STEP)(**batch)[0]
    assert torch.equal(model(**batch)[0], fresh)  # not from what the first one learned
    second = train_filters(model, batch) + 0
    assert not torch.equal(second, fresh)
    model.set_adapter("default")
    assert torch.equal(model(**batch)[0], first)
    assert "step*" in str(ga.report(model))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(**batch)[0], first)
    model.save_pretrained(tmp_path / "adapters")
    loaded = PeftModel.from_pretrained(new_base(), tmp_path / "adapters")
    loaded.load_adapter(tmp_path / "adapters" / "second", "second")
    loaded.set_adapter("second")
    assert torch.equal(loaded(**batch)[0], second)
    merged = loaded.merge_and_unload()
    assert type(merged) is type(new_base())
    assert torch.equal(merged(**batch)[0], second)
    merged.save_pretrained(tmp_path / "merged")
    assert torch.equal(ga.from_pretrained(tmp_path / "merged")(**batch)[0], second)


def test_generation_with_the_cache_is_that_without() -> None:
    model = filtered()
    batch = inputs(model.get_base_model(), "left")
    with torch.no_grad():
        for name, scalar in ga.filter_parameters(model):
            scalar.add_(0.5 if ".default." in name else 0.0)
    settings = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with model.disable_adapter():
        plain = model.generate(**batch, **settings)
    cached = model.generate(**batch, **settings)
    assert torch.equal(cached, model.generate(**batch, **settings, use_cache=False))
    assert torch.equal(plain, new_base().generate(**batch, **settings))
    assert not torch.equal(plain, cached)


def test_a_patched_base_keeps_its_own_filters_below() -> None:
    patched = ga.patch_model(new_base(), STEP)
    batch = inputs(patched)
    own = patched(**batch)[0]
    model = filtered(STEP, patched)
    train_filters(model, batch)
    with model.disable_adapter():
        assert torch.equal(model(**batch)[0], own)
    model.add_adapter("second", ga.GraphFilterConfig(graph_attn=STEP))
    model.set_adapter("second")
    assert torch.equal(model(**batch)[0], own)  # not from what the first one learned
    unloaded = model.unload()
    assert ga.is_patched(unloaded)
    assert torch.equal(unloaded(**batch)[0], own)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ga.GraphAttentionError, match=r"graph_attn is None; allowed: a variant"):
        ga.GraphFilterConfig()
    model = filtered()
    batch = inputs(model.get_base_model())
    after = model(**batch)[0]
    with pytest.raises(ga.GraphAttentionError, match=r"is patched with GFSA.*a plain base"):
        model.add_adapter("other", ga.GraphFilterConfig(graph_attn=STEP))
    model.add_adapter("second", ga.GraphFilterConfig(graph_attn=GFSA))
    with pytest.raises(ga.GraphAttentionError, match="one adapter of graph filters"):
        model.base_model.set_adapter(["default", "second"])
    assert torch.equal(model(**batch)[0], after)
    with pytest.raises(ValueError, match="different peft types"):
        model.add_adapter("lora", LoraConfig(target_modules=["c_attn"]))
    model.save_pretrained(tmp_path)
    for other in (MODELS["GPT-2"](n_layer=3), MODELS["GPT-2"](n_head=2), new_base("BERT")):
        with pytest.raises(
            ga.GraphAttentionError, match=r"does not fit .* trained on a model with"
        ):
            PeftModel.from_pretrained(other, tmp_path)
        assert not ga.is_patched(other)


def test_save_pretrained_warns_of_a_far_start_once_trained_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new_base().save_pretrained(tmp_path / "base")
    pretrained = type(new_base()).from_pretrained(tmp_path / "base")
    filtered(STEP, pretrained).save_pretrained(tmp_path / "adapter")
    assert "does not start as plain attention" in caplog.text
    caplog.clear()
    PeftModel.from_pretrained(
        type(new_base()).from_pretrained(tmp_path / "base"), tmp_path / "adapter"
    )
    assert "does not start" not in caplog.text


ORDERS = {
    "ours first": "import hf_graphattn\nfrom peft import PeftModel, AutoPeftModelForCausalLM",
    "PEFT first": "from peft import PeftModel, AutoPeftModelForCausalLM\nimport hf_graphattn",
    "Trainer": "import hf_graphattn\nfrom transformers import Trainer\nimport peft\n"
    "from peft import PeftModel, AutoPeftModelForCausalLM",
    "looked for": "import hf_graphattn, importlib.util\nimportlib.util.find_spec('peft')\n"
    "from peft import PeftModel, AutoPeftModelForCausalLM",
}
LOAD = """
import sys, torch
{imports}
from transformers import AutoModelForCausalLM
base, adapter, expected = sys.argv[1:]
expected = torch.load(expected)
def plain():
    return AutoModelForCausalLM.from_pretrained(base).eval()
third = plain()
third.load_adapter(adapter)
first = PeftModel.from_pretrained(plain(), adapter)
for model in (first, AutoPeftModelForCausalLM.from_pretrained(adapter), third):
    assert torch.equal(model.eval()(expected["ids"]).logits, expected["logits"])
print("equal")
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The folders of a base and of its adapter, and a file of its inputs and logits."""
    folder = tmp_path_factory.mktemp("saved")
    new_base().save_pretrained(folder / "base")
    model = filtered(
        model=type(new_base()).from_pretrained(folder / "base").eval(), task_type="CAUSAL_LM"
    )
    ids = inputs(model.get_base_model())["input_ids"]
    logits = train_filters(model, {"input_ids": ids})
    model.save_pretrained(folder / "adapter")
    torch.save({"ids": ids, "logits": logits}, folder / "expected")
    return [str(folder / name) for name in ("base", "adapter", "expected")]


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("order", ORDERS)
def test_a_fresh_process_loads_it_three_ways(order: str, saved: list[str]) -> None:
    done = run(LOAD.format(imports=ORDERS[order]), *saved)
    assert done.stdout.split() == ["equal"], done.stderr


def test_a_process_without_the_library_refuses_it(saved: list[str]) -> None:
    imports = ORDERS["PEFT first"].replace("import hf_graphattn", "")
    done = run(LOAD.format(imports=imports), *saved)
    assert done.returncode == 1
    assert "KeyError: 'HF_GRAPHATTN'" in done.stderr
