"""`ga.attention` and `ga.MultiheadAttention`: filters in anyone's own module."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from cases import VARIANT_CASES
from tensors import built
from tiny import MODELS
from torch import Tensor, nn
from torch.nn import functional

import hf_graphattn as ga
from hf_graphattn.backends import DELEGATE
from hf_graphattn.kernels import plat

HEADS, LENGTH, WIDTH = 4, 11, 32
GFSA = ga.GFSAConfig(order=4, w_0=-0.1, w_K=0.3)
NEUTRAL = ga.GFSAConfig()


def states(key_heads: int = HEADS) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (HEADS, key_heads, key_heads)
    return tuple(torch.randn(2, heads, LENGTH, 8).double().requires_grad_() for heads in shapes)


def test_at_plain_attention_it_is_torchs_own() -> None:
    query, key, value = states(key_heads=2)
    found = ga.attention(query, key, value, NEUTRAL.build(HEADS), is_causal=True)
    expected = functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=True
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("heads", [(4, 2), (2, 4), (2, 1), (1, 2)], ids=str)
@pytest.mark.parametrize("variant", ["degree1", "gain", "gfsa", "laplacian", "sink", "temperature"])
def test_keys_and_values_may_have_other_heads(variant: str, heads: tuple[int, int]) -> None:
    torch.manual_seed(0)
    graph_filter = built(VARIANT_CASES[variant], HEADS).double()
    given = [torch.randn(2, h, LENGTH, 8).double().requires_grad_() for h in (HEADS, *heads)]
    found = []
    for repeat in (False, True):
        each = [x.repeat_interleave(HEADS // x.shape[1], 1) if repeat else x for x in given]
        out = ga.attention(*each, graph_filter)
        leaves = [*given, *graph_filter.parameters()]
        found.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("shape", [(7, 7), (3, 7, 7)])
@pytest.mark.parametrize("config", [ga.GFSAConfig(order=4, w_K=0.3), ga.PLaTConfig(p=1.5)])
def test_masks_may_lack_the_batch_and_the_heads(
    config: ga.VariantConfig, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where heads are computed one after another."""
    monkeypatch.setattr(plat, "BLOCK_ELEMENTS", 50)
    torch.manual_seed(0)
    graph_filter = config.build(3)
    given = [torch.randn(2, 3, 7, 5, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    mask = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    found = []
    for own in (mask, mask.expand(2, 3, 7, 7)):
        out = ga.attention(*given, graph_filter, mask=own)
        found.append([out, *torch.autograd.grad(out.square().sum(), [*given, mask])])
    for got, wish in zip(*found, strict=True):
        torch.testing.assert_close(got, wish)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_a_mask_of_another_precision_is_added_as_it_is(backend: str, dtype: torch.dtype) -> None:
    """torch's own function reads float32 as float64, and refuses the others."""
    given = states()
    graph_filter, mask = (
        built(VARIANT_CASES["laplacian"], HEADS).double(),
        torch.randn(1, HEADS, LENGTH, LENGTH).double(),
    )
    graph_filter.backend, mask = backend, mask.to(dtype).requires_grad_()
    found = []
    for each in (mask, mask.double()):
        out = ga.attention(*given, graph_filter, mask=each)
        found.append([out, *torch.autograd.grad(out.square().sum(), [*given, mask])])
    torch.testing.assert_close(found[0], found[1])


REFUSED = {
    r"filter is .*build\(num_heads\)": lambda q, k, v, f: ga.attention(q, k, v, GFSA),
    "11 queries and 5 keys": lambda q, k, v, f: ga.attention(q, k[:, :, :5], v[:, :, :5], f),
    r"query \(4, 11, 8\)": lambda q, k, v, f: ga.attention(q[0], k, v, f),
    "4 heads of the filter": lambda q, k, v, f: ga.attention(*(x[:, :3] for x in (q, k, v)), f),
    r"key \(2, 3, 11, 8\).*divisor": lambda q, k, v, f: ga.attention(q, k[:, :3], v, f),
    "False beside a mask": lambda q, k, v, f: ga.attention(
        q, k, v, f, mask=q.new_zeros(11, 11), is_causal=True
    ),
    "mask is torch.int64": lambda q, k, v, f: ga.attention(
        q, k, v, f, mask=torch.ones(11, 11).long()
    ),
    r"mask is \(7, 11\).*broadcasts": lambda q, k, v, f: ga.attention(
        q, k, v, f, mask=q.new_zeros(7, 11)
    ),
    "dropout_p is 1.5": lambda q, k, v, f: ga.attention(q, k, v, f, dropout_p=1.5),
}


def test_arguments_of_attention() -> None:
    for words, call in REFUSED.items():
        with pytest.raises(ga.GraphAttentionError, match=words):
            call(*states(), GFSA.build(HEADS))
    given = (*states(), ga.LaplacianConfig().build(HEADS))
    drawn = [ga.attention(*given, dropout_p=0.2) for _ in range(2)]
    assert not torch.equal(*drawn)


def multihead(**settings: object) -> tuple[nn.MultiheadAttention, ga.MultiheadAttention]:
    plain = nn.MultiheadAttention(WIDTH, HEADS, **settings).double()
    with torch.no_grad():
        plain.in_proj_weight.mul_(3.0)
    drop_in = ga.MultiheadAttention(WIDTH, HEADS, **settings, graph_attn=NEUTRAL).double()
    drop_in.load_state_dict(plain.state_dict(), strict=False)
    return plain, drop_in


def calls(batch_first: bool) -> dict[str, tuple[Tensor, dict[str, object]]]:
    x = torch.randn(2, LENGTH, WIDTH).double()
    x = x if batch_first else x.transpose(0, 1)
    padding = torch.zeros(2, LENGTH, dtype=torch.bool)
    padding[0, -3:] = True
    causal = {"attn_mask": torch.ones(LENGTH, LENGTH).triu(1).bool(), "is_causal": True}
    bias = torch.randn(2 * HEADS, LENGTH, LENGTH).double()
    return {
        "plain": (x, {}),
        "padding": (x, {"key_padding_mask": padding}),
        "causal": (x, causal),
        "causal, padding": (x, {"key_padding_mask": padding, **causal}),
        "bias, padding": (x, {"attn_mask": bias, "key_padding_mask": padding.double() * -9.0}),
        "one row": (x[0] if batch_first else x[:, 0], {"attn_mask": bias[:HEADS]}),
    }


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_the_drop_in_is_torchs_own_at_plain_attention(
    batch_first: bool, need_weights: bool
) -> None:
    for bias in (True, False):
        plain, drop_in = multihead(batch_first=batch_first, bias=bias)
        for x, masked in calls(batch_first).values():
            for average in (True, False):
                given = {"need_weights": need_weights, "average_attn_weights": average, **masked}
                found, expected = drop_in(x, x, x, **given), plain(x, x, x, **given)
                torch.testing.assert_close(found, expected)
        x = next(iter(calls(batch_first).values()))[0]
        other = x + 1.0  # as where positions are added to queries and keys alone
        torch.testing.assert_close(drop_in(x, x, other)[0], plain(x, x, other)[0])


def test_the_drop_in_filters_and_returns_h() -> None:
    plain, drop_in = multihead(batch_first=True)
    drop_in.graph_filter.w_K.data.fill_(0.5)
    x, masked = calls(True)["padding"]
    matrix = plain(x, x, x, **masked, average_attn_weights=False)[1]
    wanted = matrix + 0.5 * (matrix + 2 * (matrix @ matrix - matrix))  # order 3
    value = functional.linear(x, plain.in_proj_weight, plain.in_proj_bias).chunk(3, -1)[2]
    value = value.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    expected = plain.out_proj((wanted @ value).transpose(1, 2).flatten(2))
    found, weights = drop_in(x, x, x, **masked, average_attn_weights=False)
    torch.testing.assert_close((found, weights), (expected, wanted))
    torch.testing.assert_close(drop_in(x, x, x, **masked, need_weights=False)[0], expected)


def test_the_drop_in_refuses_other_tokens_and_masks() -> None:
    plain, drop_in = multihead(batch_first=True)
    x = torch.randn(3, 5, WIDTH).double()
    with pytest.raises(ga.GraphAttentionError, match="cannot tell that they are of the same"):
        drop_in(x, x.clone(), x.clone())
    with pytest.raises(ga.GraphAttentionError, match="is_causal is True"):
        drop_in(x, x, x, is_causal=True)
    for mask in (
        {"key_padding_mask": torch.ones(3, 5, dtype=torch.long)},
        {"key_padding_mask": torch.zeros(5, 3, dtype=torch.bool)},
        {"attn_mask": torch.zeros(1, 5, dtype=torch.bool)},
    ):
        with pytest.raises(ga.GraphAttentionError, match=next(iter(mask))):
            drop_in(x, x, x, **mask)
    # A hint beside another mask: torch takes the mask.
    given = {"attn_mask": torch.randn(5, 5).double(), "is_causal": True, "need_weights": True}
    torch.testing.assert_close(drop_in(x, x, x, **given), plain(x, x, x, **given))
    for name in ("kdim", "add_bias_kv", "add_zero_attn"):
        with pytest.raises(ga.GraphAttentionError, match=name):
            ga.MultiheadAttention(WIDTH, HEADS, **{name: 8}, graph_attn=NEUTRAL)
    with pytest.raises(ga.GraphAttentionError, match="graph_attn is None"):
        ga.MultiheadAttention(WIDTH, HEADS, graph_attn=None)


def test_parameters_are_reset_as_torchs_and_the_scalars_with_them() -> None:
    """torch_geometric's layers reset theirs by `_reset_parameters`."""
    drop_in = ga.MultiheadAttention(WIDTH, HEADS, graph_attn=GFSA)
    plain = nn.MultiheadAttention(WIDTH, HEADS)
    drop_in.graph_filter.w_K.data.fill_(7.0)
    for module in (plain, drop_in):
        torch.manual_seed(0)
        module._reset_parameters()
    assert torch.equal(drop_in.in_proj_weight, plain.in_proj_weight)
    assert drop_in.graph_filter.w_K.tolist() == pytest.approx([0.3] * HEADS)
    model, given = ga.patch_model(encoder(), GFSA), batch(padded=False)
    model.layers[0].self_attn._reset_parameters()
    with torch.no_grad():  # torch's fast path would pass the filter by
        fast = model(**given)
    torch.testing.assert_close(model(**given), fast)


def encoder(**settings: object) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 48, batch_first=True, **settings)
    made = nn.TransformerEncoder(layer, 3).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    return made


def batch(padded: bool = True) -> dict[str, Tensor]:
    padding = torch.zeros(2, LENGTH, dtype=torch.bool)
    padding[0, -3:] = padded
    return {"src": torch.randn(2, LENGTH, WIDTH).double(), "src_key_padding_mask": padding}


def test_torchs_encoder_is_patched_and_plain_again() -> None:
    model, given = encoder(), batch()
    own, known = list(model.parameters()), list(model.modules())
    parts = [type(each) for each in known]
    seen = ~given["src_key_padding_mask"]
    with torch.no_grad():  # so that torch's fast paths are taken
        plain = model(**given)
        assert ga.patch_model(model, NEUTRAL) is model
        torch.testing.assert_close(model(**given)[seen], plain[seen])
        ga.unpatch_model(model)
        ga.patch_model(model, ga.GFSAConfig(order=4, w_K=0.3, layers=(-1,)))
        assert (model(**given) - plain)[seen].abs().max() > 1e-2
        assert list(ga.graph_filters(model)) == ["layers.2.self_attn"]
        with pytest.raises(ga.GraphAttentionError, match="patched already"):
            ga.patch_model(model, GFSA)
        ga.unpatch_model(model)
        torch.testing.assert_close(model(**given), plain, rtol=0, atol=0)
    assert all(a is b for a, b in zip(model.modules(), known, strict=True))
    assert [type(each) for each in known] == parts
    assert all(a is b for a, b in zip(model.parameters(), own, strict=True))
    assert ga.check(model, **given).passed
    assert ga.check(encoder(norm_first=True), ga.PLaTConfig(), **given).passed


class Sevenfold(nn.MultiheadAttention):
    """A subclass that does more: a filter would take the place of what it does."""

    def forward(self, *args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
        out, weights = super().forward(*args, **kwargs)
        return 7 * out, weights


def test_what_cannot_be_patched_of_torchs_is_refused() -> None:
    replaced = encoder()
    replaced.layers[1].self_attn.forward = replaced.layers[1].self_attn.forward
    zeros = nn.Sequential(nn.MultiheadAttention(8, 2, add_zero_attn=True))
    for model, words, how in (
        (nn.Sequential(Sevenfold(8, 2)), "no attention", {}),
        (replaced, "a replaced forward", {}),
        (zeros, "add_zero_attn", {}),
        (encoder(), "delegate", {"backend": DELEGATE}),
    ):
        with pytest.raises(ga.GraphAttentionError, match=words):
            ga.patch_model(model, GFSA, **how)
        assert not ga.is_patched(model)


def test_plain_torch_models_are_saved_by_state_dict_and_by_filters(tmp_path: Path) -> None:
    model, given = encoder(), batch()
    plain = copy.deepcopy(model)
    ga.patch_model(model, GFSA)
    for _, scalar in ga.filter_parameters(model):
        scalar.data.uniform_(-1, 1)
    expected = model(**given)
    assert torch.equal(pickle.loads(pickle.dumps(model))(**given), expected)
    again = ga.patch_model(copy.deepcopy(plain), GFSA)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(**given), expected)
    ga.save_filters(model, tmp_path)
    assert torch.equal(ga.load_filters(copy.deepcopy(plain), tmp_path)(**given), expected)
    with pytest.raises(ga.GraphAttentionError, match="do not fit"):
        ga.load_filters(nn.TransformerEncoder(plain.layers[0], 2), tmp_path)
    orders = [ga.MultiheadAttention(8, 2, graph_attn=ga.GFSAConfig(order=n)) for n in (2, 9)]
    with pytest.raises(ga.GraphAttentionError, match="several configs"):
        ga.save_filters(nn.Sequential(*orders), tmp_path)


def test_a_decoders_cross_attention_stays_plain() -> None:
    model = nn.Transformer(WIDTH, HEADS, 1, 1, 48, batch_first=True)
    kinds = {row.module: row.kind for row in ga.supported(model).rows}
    assert kinds["decoder.layers.0.multihead_attn"] == "cross"
    ga.patch_model(model, GFSA)
    assert set(ga.graph_filters(model)) == {
        "encoder.layers.0.self_attn",
        "decoder.layers.0.self_attn",
    }
    x = torch.randn(2, 5, WIDTH)
    assert model(x, torch.randn(2, 5, WIDTH)).shape == x.shape


def test_a_plain_torch_model_compiles_into_one_graph() -> None:
    model, given = ga.patch_model(encoder(), GFSA), batch(padded=False)
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(given["src"]), model(given["src"]))


def test_a_plain_torch_model_trains_its_scalars_alone_and_is_not_diagnosed() -> None:
    model = ga.freeze_base(ga.patch_model(encoder(), GFSA))
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert trained == {name for name, _ in ga.filter_parameters(model)}
    with pytest.raises(ga.GraphAttentionError, match="AttentionInterface"):
        ga.diagnose(model, batch())


def test_a_module_of_ones_own_trains_its_filter() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.graph_filter = ga.GFSAConfig(order=4).build(HEADS)

        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return ga.attention(query, key, value, self.graph_filter)

    own = Own()
    own(*states()).pow(2).sum().backward()
    assert own.graph_filter.w_K.grad.abs().min() > 0
    assert list(own.state_dict()) == ["graph_filter.w_K"]
    assert [name for name, _ in ga.filter_parameters(own)] == ["graph_filter.w_K"]
    with pytest.raises(ga.GraphAttentionError, match="They stay"):
        ga.unpatch_model(own)


class Filtered(nn.Module):
    """Attention that calls its filter itself."""

    def __init__(self, config: ga.VariantConfig) -> None:
        super().__init__()
        self.project, self.graph_filter = nn.Linear(8, 24), config.build(2)


def test_report_counts_filters_of_ones_own_apart() -> None:
    model = nn.Sequential(Filtered(GFSA), nn.Sequential(Filtered(ga.PLaTConfig(p=(1.5, 2.5)))))
    report = ga.report(model)
    counted = "Sequential: 2 with a filter of one's own, 2 learned scalars\n3 passes of attention"
    assert report.title.startswith(counted)
    assert [(row.layer, row.module, row.heads) for row in report.rows] == [
        (None, "0", 2),
        (None, "1.0", 2),
    ]
    assert DELEGATE not in str(report)
    assert "None" not in report._repr_html_()
    model = nn.ModuleList([MODELS["BERT"](), Filtered(GFSA)])
    counted = "ModuleList: {} of 2 self-attention modules filtered, 1 with a filter of one's own"
    assert ga.report(model).title.startswith(counted.format(0))
    ga.patch_model(model[0], GFSA)
    assert ga.report(model).title.startswith(counted.format(2))
