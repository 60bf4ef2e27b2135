"""The backends that run only where asked for: `flash_attention_2` and `flex_attention`.

The first with a stand-in for its package (see flash_attn_stand_in.py), the second torch's own,
uncompiled; its gradients are taken with torch's refusal of a backward on the CPU set aside.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
from cases import VARIANT_CASES
from flash_attn_stand_in import StandIn, install
from refusals import refused, untouched
from tensors import built, error, mask_of, states
from tiny import MODELS, gradients, inputs
from torch import Tensor
from torch.nn import functional

import hf_graphattn as ga
from hf_graphattn import backends
from hf_graphattn.backends import AttentionInputs, flash, fused, make
from hf_graphattn.interface import graph_attn as interface

FLASH, FLEX = "flash_attention_2", "flex_attention"
CONFIG = ga.GFSAConfig(order=4, w_0=-0.1, w_K=0.3)


@pytest.fixture
def flash_attn(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return install(monkeypatch)


@pytest.fixture(params=[FLASH, FLEX])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each of them, able to run and to differentiate here."""
    request.getfixturevalue("flash_attn")
    monkeypatch.setattr(torch.nn.attention.flex_attention, "_validate_device", lambda *qkv: None)
    yield request.param
    torch._dynamo.reset()


def causal_padding(new: int, keys: int, kept: slice) -> Tensor:
    """As transformers makes it for new tokens after earlier ones, (2, 1, new, keys): the first
    sequence keeps these keys, the second all."""
    mask = torch.ones(2, 1, new, keys, dtype=torch.bool).tril(keys - new)
    keep = torch.zeros(keys, dtype=torch.bool)
    keep[kept] = True
    mask[0] &= keep
    return mask


LEFT = causal_padding(7, 7, slice(3, 7))
CASES: dict[str, tuple[Tensor | None, bool, int, int]] = {  # mask, causal, Nq, Nk
    "none": (None, False, 7, 7),
    "left": (mask_of("left", 3, 7), False, 7, 7),
    "right": (mask_of("right", 3, 7), False, 7, 7),
    "full": (mask_of("full", 3, 7), False, 7, 7),
    "causal": (None, True, 7, 7),
    "causal, left": (LEFT, False, 7, 7),
    "causal, right": (causal_padding(7, 7, slice(0, 4)), False, 7, 7),
    "causal, both": (causal_padding(9, 9, slice(2, 6)), False, 9, 9),
    "cached chunk": (causal_padding(3, 8, slice(2, 8)), False, 3, 8),
    "cached token": (causal_padding(1, 8, slice(2, 8)), False, 1, 8),
    "static room": (None, True, 5, 9),
    "static room, left": (functional.pad(LEFT, (0, 4)), False, 7, 11),
    "hidden by -inf": (torch.zeros(LEFT.shape).masked_fill(~LEFT, -torch.inf), False, 7, 7),
    "one mask for all": (torch.ones(1, 1, 7, 7, dtype=torch.bool).tril(), False, 7, 7),
}


def outputs(name: str, case: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """`A x`, and its gradients to q, k and x."""
    torch.manual_seed(0)
    own, causal, new, keys = CASES[case]
    own = own.to(dtype) if own is not None and own.is_floating_point() else own
    query, _, _ = states(3, new)
    _, key, x = states(3, keys)
    leaves = [each.to(dtype).requires_grad_() for each in (query, key, x)]
    out = make(name, AttentionInputs(leaves[0], leaves[1], own, causal, 0.7, 0.0))(leaves[2])
    upstream = torch.randn(out.shape, dtype=torch.float64).to(dtype)
    return out, *torch.autograd.grad(out, leaves, upstream)


@pytest.mark.parametrize("case", CASES)
def test_it_computes_what_the_kept_matrix_does(backend: str, case: str) -> None:
    """Outputs of every row, padded ones too, and gradients; float64, and float32 as the layers."""
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 2e-6)):
        for got, expected in zip(
            outputs(backend, case, dtype), outputs("eager", case, dtype), strict=True
        ):
            assert got.dtype == dtype
            assert error(got, expected.double()) < tolerance


@pytest.mark.parametrize("variant", VARIANT_CASES)
def test_every_variant_that_is_made_of_passes_has_it(variant: str, backend: str) -> None:
    graph_filter = built(VARIANT_CASES[variant], 3).double()
    assert (backend in graph_filter.backends) == (variant not in ("plat", "sink"))
    if backend in graph_filter.backends:
        query, key, value = (each.double() for each in states(3, 9))
        own = AttentionInputs(query, key, CASES["causal, both"][0], False, 0.7, 0.0)
        got, expected = (graph_filter(make(name, own), value) for name in (backend, "eager"))
        assert error(got, expected) < 1e-12


@pytest.mark.parametrize("padding", ["none", "left", "right", "full"])
@pytest.mark.parametrize("architecture", ["BERT", "GPT-2", "Llama"])
def test_models_have_the_logits_and_gradients_of_the_kept_matrix(
    architecture: str, padding: str, backend: str
) -> None:
    compare(architecture, padding, backend)


@pytest.mark.parametrize("backend", [FLEX], indirect=True)
@pytest.mark.parametrize(("architecture", "padding"), [("T5", "right"), ("Mistral", "left")])
def test_flex_attention_takes_a_learned_bias_and_a_window(
    architecture: str, padding: str, backend: str
) -> None:
    compare(architecture, padding, backend)


def compare(architecture: str, padding: str, backend: str) -> None:
    """Logits, and every gradient, of a tiny model with both backends, in float64."""
    model = MODELS[architecture]().double()
    batch = inputs(model, padding)
    found = []
    for name in (backend, "eager"):
        ga.patch_model(model, CONFIG, backend=name)
        found.append(gradients(model, model(**batch)[0], {}))
        ga.unpatch_model(model)
    got, expected = found
    assert error(got.pop("out"), expected.pop("out")) < 1e-10
    assert len(got) == len(expected) > 20
    largest = max(float(each.abs().max()) for each in expected.values())
    for name, each in expected.items():
        assert (got[name] - each).abs().max() < 1e-10 * largest, name


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("architecture", ["GPT-2", "Llama"])
def test_cached_generation(architecture: str, cache: str, backend: str) -> None:
    model = MODELS[architecture](tie_word_embeddings=False)
    model.generation_config.update(eos_token_id=None, pad_token_id=0)
    batch = inputs(model, "left", length=6)
    settings = {"do_sample": False, "max_new_tokens": 5}
    ga.patch_model(model, CONFIG, backend="eager")
    expected = model.generate(**batch, **settings, use_cache=False)
    ga.patch_model(ga.unpatch_model(model), CONFIG, backend=backend)
    got = model.generate(**batch, **settings, cache_implementation=cache, disable_compile=True)
    assert torch.equal(got, expected)


def test_recording_attentions_uses_the_kept_matrix_and_says_so(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    interface._warn_of_eager.cache_clear()
    model = ga.patch_model(MODELS["BERT"](), CONFIG, backend=backend)
    batch = inputs(model, "right")
    with torch.no_grad():
        found = model(**batch, output_attentions=True).attentions
        ga.patch_model(ga.unpatch_model(model), CONFIG, backend="eager")
        expected = model(**batch, output_attentions=True).attentions
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert caplog.text.count(f"backend '{backend}'") == 1


def test_auto_never_chooses_them(flash_attn: StandIn) -> None:
    model = ga.patch_model(MODELS["BERT"](), CONFIG).train()
    model(**inputs(model, "right"))
    model.eval()(**inputs(model, "right"))
    assert not flash_attn.calls
    assert {backends.explain("auto", ga.GraphFilter.backends, d)[0] for d in ("cpu", "cuda")} == {
        "sdpa"
    }


def test_refused_at_patch_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS["BERT"]()
    monkeypatch.setitem(sys.modules, "flash_attn", None)  # importing it raises ImportError
    with untouched(model), refused(FLASH, "flash_attn", "pip install flash-attn", "'sdpa'"):
        ga.patch_model(model, CONFIG, backend=FLASH)
    monkeypatch.setitem(sys.modules, "flash_attn", StandIn())
    for name in (FLASH, FLEX):
        with untouched(model), refused("backend", f"'{name}'", "blockwise", "eager"):
            ga.patch_model(model, ga.PLaTConfig(), backend=name)
    ga.patch_model(model, CONFIG, backend="sdpa")  # the remedy that they name


def test_flex_attention_refuses_dropout() -> None:
    model = ga.patch_model(MODELS["BERT"](attention_probs_dropout_prob=0.1), CONFIG, backend=FLEX)
    batch = inputs(model)
    with refused(FLEX, "dropout", "0.1", "'sdpa'"):
        model.train()(**batch)
    with pytest.raises(NotImplementedError, match="backward on CPU"):  # torch's
        model.eval()(**batch)
    with torch.no_grad():
        model(**batch)


def test_flex_trains_after_an_inference_pass_of_the_same_length() -> None:
    """Its block mask is kept: made under inference mode, it could not be saved for a backward."""
    fused._causal_blocks.cache_clear()
    query, key, value = (torch.randn(1, 2, 9, 16) for _ in range(3))
    inputs = AttentionInputs(query, key, None, True, 0.25, 0.0)
    with torch.inference_mode():
        make(FLEX, inputs)(value)
    blocks = fused._causal_blocks(9, 9, query.device)
    assert not any(x.is_inference() for x in blocks.as_tuple() if isinstance(x, torch.Tensor))


def test_auto_takes_the_first_where_none_says_it_is_right() -> None:
    inputs = AttentionInputs(*(torch.randn(1, 2, 9, 16) for _ in range(2)), None, True, 0.25, 0.1)
    assert backends.choose("auto", ("sdpa",), inputs) == "sdpa"
    assert backends.explain("auto", (FLASH,), "cpu")[0] == FLASH


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", ["sdpa", "shared"])
def test_x_has_a_row_for_every_key(name: str, groups: int) -> None:
    """torch's fused kernel on the CPU takes fewer, and returns something."""
    query, key = torch.randn(1, 4, 1, 8), torch.randn(1, 4 // groups, 6, 8)
    attend = make(name, AttentionInputs(query, key, None, False, 0.3, 0.0))
    with pytest.raises(ga.GraphAttentionError, match=r"rows of x in attend.* is 1; allowed: 6"):
        attend(key[:, :, -1:])
    assert attend(key).shape == query.shape


@pytest.mark.parametrize(
    ("architecture", "padding", "a_pass"),
    [
        ("BERT", "none", ["dense"]),
        ("BERT", "right", ["packed"]),
        ("GPT-2", "none", ["dense causal"]),
        ("GPT-2", "left", ["packed causal"]),
        ("GPT-2", "right", ["packed causal", "packed"]),  # the padded positions see every key
    ],
)
def test_what_flash_attn_is_called_with(
    architecture: str,
    padding: str,
    a_pass: list[str],
    flash_attn: StandIn,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two passes a layer for GFSA, the mask looked at once, dropout in training alone."""
    looked = []
    own = flash.passes
    monkeypatch.setattr(flash, "passes", lambda *given: looked.append(given) or own(*given))
    rate = {"BERT": "attention_probs_dropout_prob", "GPT-2": "attn_pdrop"}[architecture]
    model = MODELS[architecture](**{rate: 0.25})
    ga.patch_model(model, CONFIG, backend=FLASH)
    batch = inputs(model, padding)
    for training, dropout in ((True, 0.25), (False, 0.0)):
        flash_attn.calls.clear()
        looked.clear()
        model.train(training)(**batch)
        kinds = [
            ("packed" if call["packed"] else "dense") + (" causal" if call["causal"] else "")
            for call in flash_attn.calls
        ]
        assert kinds == 2 * 2 * a_pass
        assert {call["dropout_p"] for call in flash_attn.calls} == {dropout}
        assert len(looked) == (padding != "none")


def test_a_mask_that_is_written_to_is_looked_at_again(flash_attn: StandIn) -> None:
    torch.manual_seed(0)
    mask = torch.ones(2, 1, 7, 7, dtype=torch.bool)
    query, key, x = states(3, 7)
    for hidden in range(3):
        mask[0, ..., :hidden] = False
        own = AttentionInputs(query, key, mask, False, 0.7, 0.0)
        torch.testing.assert_close(make(FLASH, own)(x), make("eager", own)(x))
    with torch.inference_mode():
        mask = mask.clone()
        for hidden in range(3, 5):
            mask[0, ..., :hidden] = False
            own = AttentionInputs(query, key, mask, False, 0.7, 0.0)
            torch.testing.assert_close(make(FLASH, own)(x), make("eager", own)(x))


def test_flash_attn_runs_in_the_dtype_of_autocast(flash_attn: StandIn) -> None:
    query, key, x = states(3, 7)
    own = AttentionInputs(query, key, None, False, 0.7, 0.0)
    with torch.autocast("cpu", torch.bfloat16):
        assert make(FLASH, own)(x).dtype == make("sdpa", own)(x).dtype == torch.bfloat16


def every_order(length: int) -> Iterator[tuple[Tensor, tuple[int, int, int]]]:
    """Every boolean mask of one sequence of this length."""
    for bits in range(2 ** (length * length)):
        rows = [[bool(bits >> (i * length + j) & 1) for j in range(length)] for i in range(length)]
        yield torch.tensor(rows)[None, None], (1, length, length)


def test_every_small_mask_is_computed_exactly_or_refused(flash_attn: StandIn) -> None:
    """All 512 masks of three positions; padding and causality are never among the refused, a
    window, two texts in one and attention to what comes later always."""
    torch.manual_seed(0)
    query, key, x = (each.double() for each in states(1, 3, width=2, batch=1))
    taken = set()
    for mask, shape in every_order(3):
        own = AttentionInputs(query, key, mask, False, 0.7, 0.0)
        try:
            flash.passes(mask, shape)
        except ga.GraphAttentionError:
            continue
        taken.add(tuple(mask.flatten().tolist()))
        torch.testing.assert_close(make(FLASH, own)(x), make("eager", own)(x))
    for keep in [torch.tensor([a, b, c]).bool() for a in (0, 1) for b in (0, 1) for c in (0, 1)]:
        both_ways = keep.expand(3, 3)
        assert tuple(both_ways.flatten().tolist()) in taken
        if keep.tolist() != [True, False, True]:  # a hole: its own row sees some of the keys
            assert tuple((both_ways.tril()).flatten().tolist()) in taken
    window, texts = [[1, 0, 0], [1, 1, 0], [0, 1, 1]], [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    for rows in (window, texts, [[1, 1, 1], [0, 1, 1], [0, 0, 1]]):
        assert tuple(bool(each) for row in rows for each in row) not in taken


def test_flash_attention_refuses_other_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the package in place: its own condition, as it is."""
    monkeypatch.setitem(sys.modules, "flash_attn", StandIn())
    model = ga.patch_model(MODELS["BERT"](), CONFIG, backend=FLASH)
    with refused(FLASH, "dtype", "torch.float32", "torch.bfloat16", "'sdpa'"):
        model(**inputs(model))
    model.bfloat16()(**inputs(model))  # the remedy that it names


@pytest.mark.parametrize(
    ("architecture", "why"),
    [("Mistral", "sliding window"), ("T5", "position bias")],
)
def test_flash_attention_refuses_other_masks(
    architecture: str, why: str, flash_attn: StandIn
) -> None:
    model = ga.patch_model(MODELS[architecture](), CONFIG, backend=FLASH)
    batch = inputs(model)
    with refused("mask", why, FLASH, "backend='sdpa'"):
        model(**batch)
    ga.patch_model(ga.unpatch_model(model), CONFIG, backend="sdpa")(**batch)


def test_flash_attention_refuses_a_mask_a_head(flash_attn: StandIn) -> None:
    query, key, x = states(3, 7)
    mask = torch.ones(2, 3, 7, 7, dtype=torch.bool)
    with refused("mask", "between heads", "(2, 3, 7, 7)"):
        make(FLASH, AttentionInputs(query, key, mask, False, 0.7, 0.0))(x)
