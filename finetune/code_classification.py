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
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    from finetune.data import loaders, rows
    from finetune.engine import launch, run, trainer
    from finetune.models import loading, tuning
    from finetune.objectives.base import Objective
    from finetune.objectives.generated import GeneratedLabels
    from finetune.objectives.labels import Labels
    from tasks.code_classification import FAMILY

    with launch.start(settings) as accelerator:
        with accelerator.main_process_first():
            task, splits = rows.load(settings.data, FAMILY, settings.train.do_predict)
        tokenizer = loading.load_tokenizer(settings.model)
        objective: Objective
        label_order: list[int] = []
        if settings.model.objective == GENERATE:
            name = settings.model.model_name_or_path
            config = loading.pretrained(AutoConfig, name, settings.model)
            model = loading.load_model(settings, config, AutoModelForSeq2SeqLM)
            objective = GeneratedLabels.of(task, tokenizer)
        else:
            config, label_order = loading.load_config(settings.model, task, tokenizer)
            model = loading.load_model(settings, config)
            objective = Labels(task, label_order)
        batches = loaders.text_loaders(settings, task, splits, tokenizer, label_order)
        model = tuning.tuned(model, settings.filter)
        work = trainer.Trainer(accelerator, model, batches, objective, settings)
        return run.run(work, tokenizer)


if __name__ == "__main__":
    exit_with(main)
