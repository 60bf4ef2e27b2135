"""One look for each name: different where drawn together, the same from figure to figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

import hf_graphattn as ga
from hf_graphattn.diagnostics import palette
from hf_graphattn.diagnostics.palette import looks
from hf_graphattn.variants import base as registry

EVERY = dict.fromkeys(["none", *ga.variant_configs()])


def test_every_variant_has_a_look_of_its_own() -> None:
    found = looks({name: name for name in EVERY})
    assert list(found) == list(EVERY)
    for values in zip(*((x.label, x.colour, x.marker) for x in found.values()), strict=True):
        assert len(set(values)) == len(EVERY)
    assert found["none"].colour == palette.BLACK
    assert [found[n].label for n in ("none", "gfsa", "plat", "laplacian")] == [
        *("plain", "GFSA", "p-LaT", "A - I"),
    ]


def test_an_arm_of_another_name_looks_like_its_variant_where_that_is_free() -> None:
    gfsa = looks({"gfsa": "gfsa"})["gfsa"]
    deep = looks({"deep": "gfsa"})["deep"]
    assert (deep.label, deep.colour, deep.marker) == ("deep", gfsa.colour, gfsa.marker)
    beside = looks({"deep": "gfsa", "gfsa": "gfsa", "other": "gfsa"})
    assert beside["gfsa"] == gfsa
    assert len({look.colour for look in beside.values()}) == 3
    before = looks({"before": "none", "none": "none"})
    assert [look.colour for look in before.values()] == [palette.GREY, palette.BLACK]


def test_settings_with_a_name_of_their_own_have_a_look_of_their_own() -> None:
    """Of one variant three, beside it and without it; another variant's arm of the name has not."""
    arms = {name: variant for name, (variant, _, _) in palette.PRESETS.items()}
    beside = looks({name: name for name in EVERY} | arms)
    assert {name: beside[name] for name in arms} == looks(arms)
    assert len({look.colour for look in beside.values()}) == len({*EVERY, *arms})
    assert looks({name: name for name in ("gain", "degree1")}) == looks(
        {name: arms[name] for name in ("gain", "degree1")}
    )
    assert [beside[name].label for name in ("gain", "degree1")] == ["gain a head", "degree 1"]
    assert looks({"gain": "gfsa"})["gain"].colour == beside["gfsa"].colour
    fast = looks({"degree1-1e-1": "polynomial", "degree2-1e-1": "polynomial"})
    assert [look.colour for look in fast.values()] == [
        *(beside[name].colour for name in ("degree1", "degree2")),
    ]
    assert fast["degree1-1e-1"].label == "degree1-1e-1"


def test_a_variant_of_another_package_takes_no_colour_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is called as it is registered, unless it says otherwise; a parent's look is not its."""
    ours = looks({name: name for name in EVERY})
    monkeypatch.setattr(registry, "_CONFIGS", dict(registry._CONFIGS))

    @ga.register("heat")
    @dataclass(frozen=True)
    class HeatConfig(ga.GFSAConfig):
        pass

    @ga.register("cold")
    @dataclass(frozen=True)
    class ColdConfig(ga.VariantConfig):
        title: ClassVar[str] = "The Cold"
        colour: ClassVar[int | None] = 20

    @dataclass(frozen=True)
    class TakenConfig(ga.VariantConfig):
        colour: ClassVar[int | None] = ga.GFSAConfig.colour

    with pytest.raises(ga.GraphAttentionError, match=r"colour of variant 'taken' is 3; .* gfsa's"):
        ga.register("taken")(TakenConfig)

    assert [palette.title(name) for name in ("heat", "cold", "gfsa")] == [
        "heat",
        "The Cold",
        "GFSA",
    ]
    every = looks({name: name for name in (*EVERY, "heat", "cold")})
    assert {name: every[name] for name in EVERY} == ours
    assert (every["cold"].label, every["cold"].colour) == ("The Cold", palette.COLOURS[20])
    assert len({look.colour for look in every.values()}) == len(EVERY) + 2
