"""Train or fine-tune a model that classifies images, plain or with a graph filter in its attention.

    accelerate launch finetune/image_classification.py --task_name cifar10 \\
        --model_name_or_path google/vit-base-patch16-224-in21k --variant gfsa --output_dir runs/c
    accelerate launch finetune/image_classification.py --train_dir photos --train_val_split 0.1 \\
        --model_type vit --config_overrides image_size=64,patch_size=8 --output_dir runs/photos
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from finetune.errors import exit_with
from finetune.settings.images import ImageDataArguments, ImageModelArguments
from finetune.settings.schema import Schema

SCHEMA = Schema(ImageDataArguments, ImageModelArguments, description=__doc__)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run with the flags of ``argv`` (None: the process's); returns what is in all_results.json."""
    settings = SCHEMA.parse(argv)
    # Imported once the flags are right: these take seconds.
    from transformers import AutoModelForImageClassification

    from finetune.data import images as data
    from finetune.engine import launch, run, trainer
    from finetune.models import images, loading, tuning
    from finetune.objectives.labels import ImageLabels

    with launch.start(settings) as accelerator:
        with accelerator.main_process_first():
            task, rows = data.load(settings.data, settings.train.do_predict)
        config, label_order = images.load_config(settings.model, task)
        processor = images.load_processor(settings.model, config)
        channels = images.channels(config)
        mode = images.MODES[channels]
        size = images.size_of(processor, mode)
        batches = data.loaders(
            settings, task, rows, data.Inputs(processor, mode, size, label_order)
        )
        model = loading.load_model(settings, config, AutoModelForImageClassification)
        images.check_pixels(model, (channels, *size))
        model = tuning.tuned(model, settings.filter)
        objective = ImageLabels(task, label_order, settings.data.label_smoothing)
        work = trainer.Trainer(accelerator, model, batches, objective, settings)
        return run.run(work, processor)


if __name__ == "__main__":
    exit_with(main)
