"""Fine-tune on a code task: a head that classifies, or a decoder that writes the label's word.

    accelerate launch finetune/code_classification.py --model_name_or_path microsoft/codebert-base \
        --task_name defect --variant gfsa --order 4 --output_dir runs/defect
    accelerate launch finetune/code_classification.py --model_name_or_path Salesforce/codet5-small \
        --task_name defect --objective generate --variant gfsa --output_dir runs/defect-codet5
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from finetune import arguments, code_models, data, engine, models, outputs, tuning
from finetune.code_models import CodeModelArguments
from tasks.code_classification import FAMILY

MAX_LENGTH = 512  # of the papers' runs


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run with the flags of ``argv`` (None: the process's); returns what is in all_results.json."""
    settings = arguments.parse(argv, model_group=CodeModelArguments, max_length=MAX_LENGTH)
    accelerator = engine.start(settings.train)
    with accelerator.main_process_first():
        task, rows = data.load(settings.data, FAMILY, settings.train.do_predict)
    tokenizer = models.load_tokenizer(settings.model)
    config, label_order = code_models.load_config(settings.model, task, tokenizer)
    loaders = data.loaders(
        task, rows, tokenizer, label_order, settings.data, settings.train, accelerator
    )
    model = code_models.load_model(settings, config)
    objective = code_models.objective(settings.model, task, tokenizer, label_order)
    model = tuning.tuned(model, settings.filter)
    trainer = engine.Trainer(accelerator, model, loaders, task, objective, settings)
    return outputs.run(trainer, tokenizer, FAMILY)


if __name__ == "__main__":
    main()
