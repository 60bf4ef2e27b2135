"""How everything that is drawn looks: a colour, a marker and a label for each name, everywhere.

Plain attention is black. A variant has the colour that its config says, and its paper's name for a
label; so have settings of one that go by a name of their own (`PRESETS`). Other names, those of
arms and models, have the next free colour, first one that no variant has.

Okabe and Ito's colours, which colour-blind people can tell apart, are those of the papers that this
library began with; the others were chosen to be far from them for such eyes. So many are not told
apart by colour alone: lines have markers too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hf_graphattn.variants import variant_configs

PLAIN = ("none", "plain")  # what commands and measurements call attention without a filter
BLACK, GREY = "#000000", "#777777"
COLOURS = (
    *("#E69F00", "#661100", "#999933", "#0072B2", "#009E73", "#EE99AA", "#56B4E9", "#D55E00"),
    *("#785EF0", "#332288", "#882255", "#CC79A7", "#666633", "#222255", "#663333", "#9C6ADE"),
    *("#117733", "#DDCC77", "#225555", "#BBCC33", "#AA3377", "#77AADD"),
)
# What arms call settings of a variant: the variant, a title, a place in the palette. A gain and
# degree 1 are variants too; before, arms of these names were of others, and look the same.
PRESETS = {
    "gain": ("shaped", "gain a head", 12),
    "degree1": ("polynomial", "degree 1", 13),
    "degree2": ("polynomial", "degree 2", 14),
    "twicing": ("polynomial", "Twicing", 15),
}
MARKERS = tuple("vp<s^XPD>h*d8H1234+x|_")
PAIRS = tuple(zip(COLOURS, MARKERS, strict=True))


@dataclass(frozen=True)
class Look:
    """How one thing is drawn, and what it is called."""

    label: str
    colour: str
    marker: str


def title(variant: str) -> str:
    """What a figure calls a variant: as its paper does."""
    if variant in PLAIN:
        return "plain"
    if variant in PRESETS:
        return PRESETS[variant][1]
    config = variant_configs().get(variant)
    return config.title if config else variant


def looks(variants: Mapping[str, str]) -> dict[str, Look]:
    """The looks of things that are drawn together: all different, as long as colours last.

    Args:
        variants: by the name of each, an arm or a model, its variant. One that is not named after
            its variant looks like it where nothing else here does.
    """
    variants = {name: _preset(name, variant) or variant for name, variant in variants.items()}
    are_named = {name: title(name) == title(variant) for name, variant in variants.items()}
    of_variants = {pair for variant in variant_configs() for pair in _of_variant(variant)}
    others = sorted(PAIRS, key=of_variants.__contains__)
    pairs: dict[str, tuple[str, str]] = {}
    for name in sorted(variants, key=lambda name: not are_named[name]):
        free = [
            pair for pair in (*_of_variant(variants[name]), *others) if pair not in pairs.values()
        ]
        pairs[name] = free[0] if free else others[len(pairs) % len(others)]
    labels = {name: title(name) if are_named[name] else name for name in variants}
    common = {label for label, count in Counter(labels.values()).items() if count > 1}
    return {
        name: Look(name if labels[name] in common else labels[name], *pairs[name])
        for name in variants
    }


def _preset(name: str, variant: str) -> str | None:
    """What `PRESETS` calls an arm of this name: "degree1", and "degree1-1e-2" too."""
    preset = name.partition("-")[0]
    return preset if preset in PRESETS and PRESETS[preset][0] == variant else None


def _of_variant(variant: str) -> list[tuple[str, str]]:
    """Colour and marker that its config says; of plain attention there may be two."""
    if variant in PLAIN:
        return [(BLACK, "o"), (GREY, "o")]
    config, preset = variant_configs().get(variant), PRESETS.get(variant)
    number = config.colour if config else preset and preset[2]
    return [] if number is None else [PAIRS[number]]
