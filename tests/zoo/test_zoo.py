"""The hard kinds of the zoo, each built and run; and what becomes of a check that goes wrong."""

from __future__ import annotations

import pytest

from zoo.models import NotBuilt, build, run
from zoo.settings import SECOND
from zoo.sizes import tiny

HARD = (
    "deepseek_v3",  # values of another width than keys, experts
    "detr",  # a backbone, and a nested config that is None unless it is said
    "gemma3",  # image tokens among the text, two kinds of layers
    "gemma4_text",  # layers of different widths
    "jamba",  # layers without attention
    "qwen2_5_vl",  # grids of patches, rotary sections
    "swin",  # a hierarchy of windows
    "whisper",
)


@pytest.mark.parametrize("model_type", HARD)
def test_a_hard_kind_is_built_and_runs_with_every_padding(model_type: str) -> None:
    assert run(model_type) == "ok"


def test_a_type_without_a_model_is_refused_with_the_reason() -> None:
    with pytest.raises(NotBuilt, match="no model class"):
        build("nougat")


@pytest.mark.parametrize("name", [f"{name}, {each}" for name in SECOND for each in SECOND[name]])
def test_a_second_model_of_a_type_is_another_one_that_runs(name: str) -> None:
    model_type, _, second = name.partition(", ")
    first, config = tiny(model_type), tiny(name)
    for setting, value in SECOND[model_type][second].items():
        assert getattr(config, setting) == value
    assert config.to_dict() != first.to_dict()
    assert run(name) == "ok"
