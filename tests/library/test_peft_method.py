"""`GraphFilterConfig`, a method of PEFT: train, save, load onto a plain base, switch, take out."""

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
from tiny import MODELS, inputs
from transformers import PreTrainedModel

import hf_graphattn as ga

GFSA = ga.GFSAConfig(order=3, w_0=0.1, trainable=("w_0", "w_K"))
STEP = ga.LaplacianConfig(step=0.4, trainable=("step",))
ALL = {name: case.config for name, case in (VARIANT_CASES | TOKEN_CASES).items()}


def base(architecture: str = "GPT-2") -> PreTrainedModel:
    torch.manual_seed(0)
    return MODELS[architecture]().eval()


def adapted(
    config: ga.VariantConfig = GFSA, model: PreTrainedModel | None = None, **settings: object
) -> PeftModel:
    peft_config = ga.GraphFilterConfig(graph_attn=config, **settings)
    return get_peft_model(base() if model is None else model, peft_config).eval()


def train(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
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
    plain, config = base(architecture), ALL[variant]
    batch = inputs(plain)
    plain.requires_grad_(False)  # as PEFT does: torch chooses other kernels for gradients
    before = plain(**batch)[0]
    model = adapted(config, plain)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert all(".graph_filters.default." in name for name in trained)
    assert len(trained) == len(config.trainable) * len(ga.graph_filters(model))
    after = train(model, batch) if trained else model(**batch)[0]
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
        loaded = load(base(architecture), tmp_path).eval()
        assert torch.equal(loaded(**batch)[0], after)
    assert torch.equal(model.unload()(**batch)[0], before)
    assert not ga.is_patched(plain)


def test_a_new_head_is_saved_with_them(tmp_path: Path) -> None:
    model = adapted(model=base("BERT"), task_type="SEQ_CLS")
    batch = inputs(model.get_base_model())
    after = train(model, batch)
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(base("BERT"), tmp_path)
    assert torch.equal(loaded(**batch)[0], after)
    assert (
        "classifier"
        in json.loads((tmp_path / "adapter_config.json").read_text())["modules_to_save"]
    )


def test_transformers_own_methods_and_peft_auto_classes(tmp_path: Path) -> None:
    base().save_pretrained(tmp_path / "base")
    own = type(base())
    model = adapted(STEP, own.from_pretrained(tmp_path / "base").eval())
    batch = inputs(model.get_base_model())
    before = base()(**batch)[0]
    after = train(model, batch)
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
    assert torch.equal(PeftModel.from_pretrained(base(), tmp_path / "again")(**batch)[0], after)


def test_adapters_switch_merge_and_copy(tmp_path: Path) -> None:
    model = adapted(STEP)
    batch = inputs(model.get_base_model())
    first = train(model, batch)
    model.add_adapter("second", ga.GraphFilterConfig(graph_attn=STEP))
    model.set_adapter("second")
    fresh = ga.patch_model(base(), STEP)(**batch)[0]
    assert torch.equal(model(**batch)[0], fresh)  # not from what the first one learned
    second = train(model, batch) + 0
    assert not torch.equal(second, fresh)
    model.set_adapter("default")
    assert torch.equal(model(**batch)[0], first)
    assert "step*" in str(ga.report(model))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(**batch)[0], first)
    model.save_pretrained(tmp_path / "adapters")
    loaded = PeftModel.from_pretrained(base(), tmp_path / "adapters")
    loaded.load_adapter(tmp_path / "adapters" / "second", "second")
    loaded.set_adapter("second")
    assert torch.equal(loaded(**batch)[0], second)
    merged = loaded.merge_and_unload()
    assert type(merged) is type(base())
    assert torch.equal(merged(**batch)[0], second)
    merged.save_pretrained(tmp_path / "merged")
    assert torch.equal(ga.from_pretrained(tmp_path / "merged")(**batch)[0], second)


def test_generation_with_the_cache_is_that_without() -> None:
    model = adapted()
    batch = inputs(model.get_base_model(), "left")
    with torch.no_grad():
        for name, scalar in ga.filter_parameters(model):
            scalar.add_(0.5 if ".default." in name else 0.0)
    settings = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with model.disable_adapter():
        plain = model.generate(**batch, **settings)
    cached = model.generate(**batch, **settings)
    assert torch.equal(cached, model.generate(**batch, **settings, use_cache=False))
    assert torch.equal(plain, base().generate(**batch, **settings))
    assert not torch.equal(plain, cached)


def test_a_patched_base_keeps_its_own_filters_below() -> None:
    patched = ga.patch_model(base(), STEP)
    batch = inputs(patched)
    own = patched(**batch)[0]
    model = adapted(STEP, patched)
    train(model, batch)
    with model.disable_adapter():
        assert torch.equal(model(**batch)[0], own)
    unloaded = model.unload()
    assert ga.is_patched(unloaded)
    assert torch.equal(unloaded(**batch)[0], own)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ga.GraphAttentionError, match=r"graph_attn is None; allowed: a variant"):
        ga.GraphFilterConfig()
    model = adapted()
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
    for other in (MODELS["GPT-2"](n_layer=3), MODELS["GPT-2"](n_head=2), base("BERT")):
        with pytest.raises(
            ga.GraphAttentionError, match=r"does not fit .* trained on a model with"
        ):
            PeftModel.from_pretrained(other, tmp_path)
        assert not ga.is_patched(other)


def test_save_pretrained_warns_of_a_far_start_once_trained_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base().save_pretrained(tmp_path / "base")
    pretrained = type(base()).from_pretrained(tmp_path / "base")
    adapted(STEP, pretrained).save_pretrained(tmp_path / "adapter")
    assert "does not start as plain attention" in caplog.text
    caplog.clear()
    PeftModel.from_pretrained(type(base()).from_pretrained(tmp_path / "base"), tmp_path / "adapter")
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
    base().save_pretrained(folder / "base")
    model = adapted(
        model=type(base()).from_pretrained(folder / "base").eval(), task_type="CAUSAL_LM"
    )
    ids = inputs(model.get_base_model())["input_ids"]
    logits = train(model, {"input_ids": ids})
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
