"""Fine-tune a pretrained model on a GLUE task, plain or with a graph filter in its attention.

    accelerate launch finetune/glue.py --model_name_or_path bert-base-uncased --task_name cola \
        --variant gfsa --order 4 --w_0 -0.01 --output_dir runs/cola
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from accelerate.utils import set_seed

from finetune import arguments, data, engine, models, outputs

FAMILY = "glue"


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run with the flags of ``argv`` (None: the process's); returns what is in all_results.json."""
    settings = arguments.parse(argv)
    accelerator = engine.make_accelerator(settings.train)
    logging.basicConfig(level=logging.INFO if accelerator.is_main_process else logging.ERROR)
    set_seed(settings.train.seed)
    with accelerator.main_process_first():
        task, rows = data.load(settings.data, FAMILY, settings.train.do_predict)
    tokenizer = models.load_tokenizer(settings.model)
    config, label_order = models.load_config(settings.model, task, tokenizer.pad_token_id)
    loaders = data.loaders(
        task, rows, tokenizer, label_order, settings.data, settings.train, accelerator
    )
    mismatched = settings.model.ignore_mismatched_sizes
    model = models.load_model(settings, config, ignore_mismatched_sizes=mismatched)
    trainer = engine.Trainer(accelerator, model, loaders, task, label_order, settings)
    if settings.train.with_tracking:
        accelerator.init_trackers(FAMILY, outputs.tracker_settings(settings))
    # Each process draws its own dropout; the weights are equal already.
    set_seed(settings.train.seed, device_specific=True)
    trainer.train()
    results = outputs.finish(trainer, tokenizer, settings)
    accelerator.end_training()
    return results


if __name__ == "__main__":
    main()
