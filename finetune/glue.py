"""Fine-tune a pretrained model on a GLUE task, plain or with a graph filter in its attention.

    accelerate launch finetune/glue.py --model_name_or_path bert-base-uncased --task_name cola \\
        --variant gfsa --order 4 --w_0 -0.01 --output_dir runs/cola
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from finetune.errors import exit_with
from finetune.settings.groups import DataArguments, ModelArguments
from finetune.settings.schema import Schema

FAMILY = "glue"
SCHEMA = Schema(DataArguments, ModelArguments, description=__doc__)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run with the flags of ``argv`` (None: the process's); returns what is in all_results.json."""
    settings = SCHEMA.parse(argv)
    # Imported once the flags are right: these take seconds.
    from finetune.data import loaders, rows
    from finetune.engine import launch, run, trainer
    from finetune.models import loading, tuning
    from finetune.objectives.labels import Labels

    with launch.start(settings) as accelerator:
        with accelerator.main_process_first():
            task, splits = rows.load(settings.data, FAMILY, settings.train.do_predict)
        tokenizer = loading.load_tokenizer(settings.model)
        config, label_order = loading.load_config(settings.model, task, tokenizer)
        batches = loaders.text_loaders(settings, task, splits, tokenizer, label_order)
        model = loading.load_model(settings, config)
        model = tuning.tuned(model, settings.filter)
        objective = Labels(task, label_order)
        work = trainer.Trainer(accelerator, model, batches, objective, settings)
        return run.run(work, tokenizer)


if __name__ == "__main__":
    exit_with(main)
