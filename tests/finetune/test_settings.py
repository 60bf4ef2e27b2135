"""The command line: flags of the variants, numbers, defaults and refusals."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import field, fields, make_dataclass

import pytest

import hf_graphattn as ga
from finetune import code_classification, glue
from finetune.experiments.arms import families
from finetune.settings import variants
from finetune.settings.schema import Run

BASE = ("--model_name_or_path", "m", "--output_dir", "o")


def parse(flags: str = "") -> Run:
    return glue.SCHEMA.parse([*BASE, *flags.split()])


def test_only_given_flags_reach_the_config() -> None:
    assert parse("--variant gfsa").variant == ga.GFSAConfig()
    given = parse("--variant gfsa --order 4 --w_0 -0.01").variant
    assert given == ga.GFSAConfig(order=4, w_0=-0.01)
    assert parse().variant is None


def test_sequences_and_negative_numbers() -> None:
    gfsa = parse("--variant gfsa --layers -1 0 --trainable w_K w_0 --w_0 -1e-3 --w_1 1E-2")
    assert gfsa.variant == ga.GFSAConfig(
        layers=(-1, 0), trainable=("w_K", "w_0"), w_0=-0.001, w_1=0.01
    )
    plat = parse("--variant plat --p 1.5 2.5 --eps 1e-2")
    assert plat.variant == ga.PLaTConfig(p=(1.5, 2.5), eps=0.01)
    laplacian = parse("--variant laplacian --step -.5e-1 --trainable step")
    assert laplacian.variant == ga.LaplacianConfig(step=-0.05, trainable=("step",))
    assert parse("--variant gfsa --trainable none").variant.trainable == ()


def test_every_setting_of_every_variant_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        glue.SCHEMA.parse(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    settings = [(v, f) for v, config in ga.variant_configs().items() for f in fields(config)]
    assert len(settings) > 10
    for variant, setting in settings:
        assert re.search(rf"{setting.name} ", shown)
        assert f"{variant}: " in shown


def test_flag_of_another_variant_says_which_has_it() -> None:
    with pytest.raises(ValueError, match=r"eps is 0\.1; allowed: with variant plat\. variant gfsa"):
        parse("--variant gfsa --eps 0.1")
    with pytest.raises(ValueError, match=r"order is 4; allowed: with variant gfsa\. variant none"):
        parse("--order 4")


def test_bad_value_of_a_variant_is_refused_by_the_library() -> None:
    with pytest.raises(ga.GraphAttentionError, match="order is 0"):
        parse("--variant gfsa --order 0")


def test_one_name_with_two_types_is_refused() -> None:
    first = make_dataclass("First", [("order", int, field(default=1))])
    second = make_dataclass("Second", [("order", float, field(default=1.0))])
    with pytest.raises(ValueError, match=r"second's field order is .*float.*allowed: .*int"):
        variants.flags_of_all({"first": first, "second": second})


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            "--variant gfsb",
            rf"variant is 'gfsb'; allowed: {', '.join(['none', *ga.variant_configs()])}\.",
        ),
        ("--learning_rate -1", r"learning_rate is -1\.0; allowed: a number of at least 0\."),
        ("--learning_rate nan", "learning_rate is nan"),
        ("--num_train_epochs 0", "num_train_epochs is 0; allowed: a number of at least 1"),
        ("--filter_learning_rate -1", "filter_learning_rate is -1"),
        ("--warmup_ratio 2", r"warmup_ratio is 2\.0; allowed: 0 to 1"),
        ("--warmup_ratio 0.1 --num_warmup_steps 5", "5; allowed: 0 beside warmup_ratio"),
        ('--lr_scheduler_kwargs {"power":2}', "of linear is .*power.*; allowed: .*with nothing"),
        ("--lr_scheduler_kwargs [1]", "a JSON object with nothing"),
        *(
            (
                f"--lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs {given}",
                r"allowed: a JSON object with min_lr, .*, each a number of at least 0\. \S",
            )
            for given in ('{"min_lr":NaN}', '{"min_lr_rate":-0.1}', '{"min_lr":"a"}')
        ),
        ("--lr_scheduler_kwargs {", "a JSON object with nothing. Expecting property name"),
        ("--no_such_flag 1", r"^unrecognized arguments: --no_such_flag 1\. See --help"),
        ("--max_length many", "argument --max_length.*: invalid int value: 'many'"),
        ("--dataset_name ./gone", r"dataset_name is './gone'; allowed: a hub id, or an existing f"),
        ("--tokenizer_name /no/such", "tokenizer_name is '/no/such'; allowed: a hub id, or an ex"),
        (
            "--train_file gone.csv",
            r"train_file is 'gone\.csv'; allowed: an existing file\. It does",
        ),
    ],
)
def test_refusals(argv: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(argv)


def test_truths_dashes_and_lists() -> None:
    assert parse().train.load_best_model_at_end is None
    assert parse("--load_best_model_at_end").train.load_best_model_at_end is True
    assert parse("--load_best_model_at_end No").train.load_best_model_at_end is False
    assert parse("--do-predict --max-length 7").data.max_length == 7
    assert parse("--metric f1 a.py").data.metric == ["f1", "a.py"]
    assert parse("--dataset_name me/data").data.dataset_name == "me/data"


def test_only_what_was_given_is_data() -> None:
    given = glue.SCHEMA.read(["--order", "4", "--seed=3", "--do_predict"])
    # In the order of --help, whichever they were given in.
    assert list(given.items()) == [("do_predict", True), ("seed", 3), ("order", 4)]
    # Of a run elsewhere, or long ago, the files need not be here.
    flags = {"model_name_or_path": "/gone", "output_dir": "o", "train_file": "gone.csv"}
    assert glue.SCHEMA.run(flags).data.train_file == "gone.csv"


@pytest.mark.parametrize(
    ("values", "typed"),
    [
        ({"learning_rate": "2e-5", "order": 4.0}, None),
        ({"learning_rate": "2e-5", "w_0": 1}, {"learning_rate": 2e-5, "w_0": 1.0}),
        ({"layers": -1, "p": [1, "2"]}, {"layers": [-1], "p": [1.0, 2.0]}),
        (
            {"checkpointing_steps": 5, "report_to": False},
            {"checkpointing_steps": "5", "report_to": "no"},
        ),
        ({"mixed_precision": False, "seed": None}, {"mixed_precision": "no"}),
        *(
            ({name: value}, None)
            for name, value in (
                ("seed", 1.5),
                ("seed", True),
                ("seed", "x"),
                ("learning_rate", True),
                ("max_length", [1]),
                ("do_predict", "yes"),
                ("do_predict", 1),
                ("mixed_precision", "fp8"),
                ("seed", {"a": 1}),
            )
        ),
    ],
)
def test_values_of_yaml_get_their_flags_types(values: dict, typed: dict | None) -> None:
    if typed is None:
        with pytest.raises(ValueError, match=r" is .*; allowed: "):
            glue.SCHEMA.typed(values, "recipe")
    else:
        assert glue.SCHEMA.typed(values, "recipe") == typed


HEAVY = ("datasets", "accelerate", "pandas", "pyarrow", "torch._dynamo")
HELP, GONE = ["--help"], ["--model_name_or_path", "./gone", "--output_dir", "o"]


@pytest.mark.parametrize(
    ("scripts", "calls", "heavy"),
    [
        # Torch is, since a variant's settings are with its filter; transformers for its parser.
        (tuple(families()), (HELP, ["--bogus"], GONE), HEAVY),
        (("compare", "sweep", "evidence"), (HELP,), (*HEAVY, "torch", "transformers")),
    ],
)
def test_flags_are_told_before_anything_heavy_is_imported(
    scripts: tuple[str, ...], calls: tuple[list[str], ...], heavy: tuple[str, ...]
) -> None:
    program = f"""
import importlib, sys
for name in {scripts}:
    for words in {calls}:
        try:
            importlib.import_module(f"finetune.{{name}}").main(words)
        except (SystemExit, ValueError) as error:
            print(repr(error)[:40], file=sys.stderr)
print("loaded:", *({set(heavy)} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == len(calls) * len(scripts)
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_code_is_cut_later() -> None:
    assert code_classification.SCHEMA.parse([*BASE]).data.max_length == 512
    assert (
        code_classification.SCHEMA.parse([*BASE, "--max_seq_length", "64"]).flat()["max_length"]
        == 64
    )
