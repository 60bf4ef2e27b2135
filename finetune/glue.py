"""Fine-tune a pretrained model on a GLUE task, plain or with a graph filter in its attention.

    accelerate launch finetune/glue.py --model_name_or_path bert-base-uncased --task_name cola \
        --variant gfsa --order 4 --w_0 -0.01 --output_dir runs/cola
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from finetune import arguments, data, engine, models, outputs, tuning
from finetune.objectives import Labels

FAMILY = "glue"


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run with the flags of ``argv`` (None: the process's); returns what is in all_results.json."""
    settings = arguments.parse(argv)
    accelerator = engine.start(settings.train)
    with accelerator.main_process_first():
        task, rows = data.load(settings.data, FAMILY, settings.train.do_predict)
    tokenizer = models.load_tokenizer(settings.model)
    config, label_order = models.load_config(settings.model, task, tokenizer.pad_token_id)
    loaders = data.loaders(
        task, rows, tokenizer, label_order, settings.data, settings.train, accelerator
    )
    mismatched = settings.model.ignore_mismatched_sizes
    model = models.load_model(settings, config, ignore_mismatched_sizes=mismatched)
    model = tuning.tuned(model, settings.filter)
    trainer = engine.Trainer(accelerator, model, loaders, task, Labels(label_order), settings)
    return outputs.run(trainer, tokenizer, FAMILY)


if __name__ == "__main__":
    main()
