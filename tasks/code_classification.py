"""These are code tasks of CodeXGLUE (Lu et al., arXiv 2102.04664), and a demo like its first one.

The labels are booleans in the data. Their names are the words that a decoder generates with the
objective `generate`, as in CodeT5's released code.
"""

from __future__ import annotations

from typing import Any

from tasks import Split, Task, demo_code
from tasks.metrics import ACCURACY, F1

FAMILY = "code_classification"
LABEL_WORDS = ("false", "true")


def _code(name: str, text_columns: tuple[str, ...], **others: Any) -> Task:
    """Return a task of this family, with the labels and the file that all of them have."""
    return Task(
        name=name,
        family=FAMILY,
        objective="classify",
        text_columns=text_columns,
        label_names=LABEL_WORDS,
        test_splits=(Split("test", prediction_file=f"{name}.tsv"),),
        verbatim=True,
        **others,
    )


TASKS = (
    # Devign (Zhou et al., arXiv 1909.03496) asks: is the C function vulnerable?
    _code(
        "defect",
        ("func",),
        dataset_name="google/code_x_glue_cc_defect_detection",
        dataset_config="default",
        label_column="target",
        metrics=(ACCURACY,),
        main_metric="accuracy",
    ),
    # BigCloneBench (Svajlenko et al. 2014, split of arXiv 2002.08653) asks: do two methods do
    # the same?
    _code(
        "clone",
        ("func1", "func2"),
        dataset_name="google/code_x_glue_cc_clone_detection_big_clone_bench",
        dataset_config="default",
        metrics=(ACCURACY, F1),
        main_metric="f1",
    ),
    _code(
        "demo",
        ("func",),
        builder=demo_code.build,
        label_column="target",
        metrics=(ACCURACY,),
        main_metric="accuracy",
    ),
)
