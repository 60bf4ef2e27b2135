"""The rows of the code tasks."""

from __future__ import annotations

import tasks
from tasks import code_classification

FAMILY = code_classification.FAMILY


def test_the_family_has_the_three_tasks() -> None:
    assert tasks.names(FAMILY) == ["defect", "clone", "demo"]
    for name in tasks.names(FAMILY):
        task = tasks.get(name, FAMILY)
        assert task.verbatim
        assert task.label_names == ("false", "true")
    assert tasks.get("clone").main_metric == "f1"
    known = tasks.registered().items()
    assert not any(task.verbatim for (family, _), task in known if family == "glue")
