"""Train a language model, plain or with a graph filter in its attention, and measure perplexity.

    accelerate launch finetune/lm.py --model_name_or_path gpt2 --task_name ptb \
        --variant gfsa --order 7 --output_dir runs/ptb
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from finetune import arguments, engine, lm_data, lm_models, outputs, tuning
from finetune.lm_arguments import LanguageDataArguments, LanguageModelArguments
from finetune.lm_objective import LanguageModelling
from tasks.lm import FAMILY


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run with the flags of ``argv`` (None: the process's); returns what is in all_results.json."""
    settings = arguments.parse(
        argv, data_group=LanguageDataArguments, model_group=LanguageModelArguments
    )
    accelerator = engine.start(settings.train)
    with accelerator.main_process_first():
        task, rows = lm_data.load(settings.data, settings.train.do_predict)
        (column,) = task.text_columns
        tokenizer = lm_models.load_tokenizer(settings.model, rows[task.train_split][column])
        config = lm_models.load_config(settings.model, tokenizer)
        size = lm_data.block_size(settings.data, tokenizer, lm_models.positions(config))
        texts = lm_data.texts(task, rows, tokenizer)
    stride = settings.data.stride
    loaders = lm_data.loaders(task, texts, size, stride, settings.train)
    objective = LanguageModelling(texts, loaders.train.dataset, size, stride)
    model = lm_models.load_language_model(settings, config)
    model = tuning.tuned(model, settings.filter)
    trainer = engine.Trainer(accelerator, model, loaders, task, objective, settings)
    return outputs.run(trainer, tokenizer, FAMILY)


if __name__ == "__main__":
    main()
