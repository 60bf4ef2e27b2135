"""These are the nine tasks of GLUE (Wang et al., arXiv 1804.07461) and a demo task like CoLA."""

from __future__ import annotations

from typing import Any

from tasks import Metric, Split, Task, demo
from tasks.metrics import ACCURACY, F1, MATTHEWS_CORRELATION, PEARSON, SPEARMANR

FAMILY = "glue"
HUB_ID = "nyu-mll/glue"
ENTAILMENT = ("entailment", "not_entailment")


def _glue(
    name: str,
    text_columns: tuple[str, ...],
    label_names: tuple[str, ...],
    metrics: tuple[Metric, ...],
    main_metric: str,
    prediction_file: str = "",
    **others: Any,
) -> Task:
    splits = {"test_splits": (Split("test", prediction_file=prediction_file),)}
    return Task(
        name=name,
        family=FAMILY,
        objective="classify" if label_names else "regress",
        dataset_name=HUB_ID,
        dataset_config=name,
        text_columns=text_columns,
        label_names=label_names,
        metrics=metrics,
        main_metric=main_metric,
        **(splits | others),
    )


PAIR = ("sentence1", "sentence2")
ACCEPTABLE = ("unacceptable", "acceptable")
PARAPHRASE = ("not_equivalent", "equivalent")

TASKS = (
    _glue(
        "cola",
        ("sentence",),
        ACCEPTABLE,
        (MATTHEWS_CORRELATION,),
        "matthews_correlation",
        "CoLA.tsv",
    ),
    _glue("sst2", ("sentence",), ("negative", "positive"), (ACCURACY,), "accuracy", "SST-2.tsv"),
    _glue("mrpc", PAIR, PARAPHRASE, (ACCURACY, F1), "f1", "MRPC.tsv"),
    _glue(
        "qqp",
        ("question1", "question2"),
        ("not_duplicate", "duplicate"),
        (ACCURACY, F1),
        "f1",
        "QQP.tsv",
    ),
    _glue(
        "stsb",
        PAIR,
        (),
        (PEARSON, SPEARMANR),
        "pearson",
        "STS-B.tsv",
        score_range=(0.0, 5.0),
    ),
    _glue(
        "mnli",
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        (ACCURACY,),
        "accuracy",
        validation_splits=(
            Split("validation_matched"),
            Split("validation_mismatched", key_suffix="_mm"),
        ),
        test_splits=(
            Split("test_matched", prediction_file="MNLI-m.tsv"),
            Split("test_mismatched", key_suffix="_mm", prediction_file="MNLI-mm.tsv"),
        ),
        submits_names=True,
    ),
    _glue(
        "qnli",
        ("question", "sentence"),
        ENTAILMENT,
        (ACCURACY,),
        "accuracy",
        "QNLI.tsv",
        submits_names=True,
    ),
    _glue("rte", PAIR, ENTAILMENT, (ACCURACY,), "accuracy", "RTE.tsv", submits_names=True),
    _glue("wnli", PAIR, ("not_entailment", "entailment"), (ACCURACY,), "accuracy", "WNLI.tsv"),
    Task(
        name="demo",
        family=FAMILY,
        objective="classify",
        builder=demo.build,
        text_columns=("sentence",),
        label_names=ACCEPTABLE,
        metrics=(MATTHEWS_CORRELATION,),
        main_metric="matthews_correlation",
        test_splits=(Split("test", prediction_file="demo.tsv"),),
    ),
)
