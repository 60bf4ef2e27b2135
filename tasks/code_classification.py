"""These are code tasks of CodeXGLUE (Lu et al., arXiv 2102.04664), and a demo like its first one.

The labels are booleans in the data. Their names are the words that a decoder generates with the
objective `generate`, as in CodeT5's released code.
"""

from __future__ import annotations

from tasks import Split, Task, demo_code
from tasks.metrics import ACCURACY, F1

FAMILY = "code_classification"
LABEL_WORDS = ("false", "true")

TASKS = (
    # Devign (Zhou et al., arXiv 1909.03496) asks: is the C function vulnerable?
    Task(
        name="defect",
        family=FAMILY,
        objective="classify",
        dataset_name="google/code_x_glue_cc_defect_detection",
        dataset_config="default",
        text_columns=("func",),
        label_column="target",
        label_names=LABEL_WORDS,
        metrics=(ACCURACY,),
        main_metric="accuracy",
        test_splits=(Split("test", prediction_file="defect.tsv"),),
        verbatim=True,
    ),
    # BigCloneBench (Svajlenko et al. 2014, split of arXiv 2002.08653) asks: do two methods do
    # the same?
    Task(
        name="clone",
        family=FAMILY,
        objective="classify",
        dataset_name="google/code_x_glue_cc_clone_detection_big_clone_bench",
        dataset_config="default",
        text_columns=("func1", "func2"),
        label_names=LABEL_WORDS,
        metrics=(ACCURACY, F1),
        main_metric="f1",
        test_splits=(Split("test", prediction_file="clone.tsv"),),
        verbatim=True,
    ),
    Task(
        name="demo",
        family=FAMILY,
        objective="classify",
        builder=demo_code.build,
        text_columns=("func",),
        label_column="target",
        label_names=LABEL_WORDS,
        metrics=(ACCURACY,),
        main_metric="accuracy",
        test_splits=(Split("test", prediction_file="demo.tsv"),),
        verbatim=True,
    ),
)
