"""Fine-tune on a code task: a head that classifies, or a decoder that writes the label's word.

    accelerate launch finetune/code_classification.py --task_name defect \\
        --model_name_or_path microsoft/codebert-base --variant gfsa --order 4 \\
        --output_dir runs/defect
    accelerate launch finetune/code_classification.py --task_name defect --objective generate \\
        --model_name_or_path Salesforce/codet5-small --variant gfsa --output_dir runs/defect-codet5
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from finetune.errors import exit_with
from finetune.settings.code import GENERATE, CodeDataArguments, CodeModelArguments
from finetune.settings.schema import Schema

SCHEMA = Schema(CodeDataArguments, CodeModelArguments, description=__doc__)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run with the flags of ``argv`` (None: the process's); returns what is in all_results.json."""
    settings = SCHEMA.parse(argv)
    # Imported once the flags are right: these take seconds.
    from finetune.data import loaders, rows
    from finetune.engine import launch, run, trainer
    from finetune.models import code, loading, tuning
    from finetune.objectives.base import Objective
    from finetune.objectives.generated import GeneratedLabels, LabelWords
    from finetune.objectives.labels import Labels
    from tasks.code_classification import FAMILY

    with launch.start(settings) as accelerator:
        with accelerator.main_process_first():
            task, splits = rows.load(settings.data, FAMILY, settings.train.do_predict)
        tokenizer = loading.load_tokenizer(settings.model)
        config, label_order = code.load_config(settings.model, task, tokenizer)
        batches = loaders.text_loaders(
            task, splits, tokenizer, label_order, settings.data, settings.train, accelerator
        )
        model = code.load_model(settings, config)
        objective: Objective = Labels(task, label_order)
        if settings.model.objective == GENERATE:
            objective = GeneratedLabels(task, LabelWords.of(task.label_names, tokenizer))
        model = tuning.tuned(model, settings.filter)
        work = trainer.Trainer(accelerator, model, batches, task, objective, settings)
        return run.run(work, tokenizer, FAMILY)


if __name__ == "__main__":
    exit_with(main)
