"""Train a language model, plain or with a graph filter in its attention, and measure perplexity.

    accelerate launch finetune/lm.py --model_name_or_path gpt2 --task_name ptb \\
        --variant gfsa --order 7 --output_dir runs/ptb
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from finetune.errors import exit_with
from finetune.settings.language import LanguageDataArguments, LanguageModelArguments
from finetune.settings.schema import Schema

SCHEMA = Schema(LanguageDataArguments, LanguageModelArguments, description=__doc__)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run with the flags of ``argv`` (None: the process's); returns what is in all_results.json."""
    settings = SCHEMA.parse(argv)
    # Imported once the flags are right: these take seconds.
    from transformers import AutoModelForCausalLM

    from finetune.data import sources, text
    from finetune.engine import launch, run, trainer
    from finetune.models import language, loading, tuning
    from finetune.objectives.language import LanguageModelling

    with launch.start(settings) as accelerator:
        with accelerator.main_process_first():
            task, rows = text.load(settings.data, settings.train.do_predict)
            (column,) = task.text_columns
            tokenizer = language.load_tokenizer(settings.model, rows[task.train_split][column])
            config = language.load_config(settings.model, tokenizer)
            size = text.block_size(settings.data, tokenizer, language.positions(config))
            texts = text.texts(task, rows, tokenizer)
        blocks, origin = text.training_blocks(task, texts, size), sources.origin(rows)
        batches = text.loaders(settings, task, texts, blocks, origin)
        objective = LanguageModelling(task, texts, blocks, settings.data.stride)
        model = loading.load_model(settings, config, AutoModelForCausalLM)
        model = tuning.tuned(model, settings.filter)
        work = trainer.Trainer(accelerator, model, batches, objective, settings)
        return run.run(work, tokenizer)


if __name__ == "__main__":
    exit_with(main)
