"""Train or fine-tune a model that writes what it hears, plain or with a graph filter, by CTC.

    accelerate launch finetune/speech_recognition.py --task_name librispeech100 \\
        --model_name_or_path facebook/wav2vec2-base --variant gfsa --output_dir runs/speech
    accelerate launch finetune/speech_recognition.py --dataset_name recordings \\
        --validation_split_percentage 10 --model_name_or_path facebook/hubert-base-ls960 \\
        --variant gfsa --output_dir runs/own
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from finetune.errors import exit_with
from finetune.settings.schema import Schema
from finetune.settings.speech import SpeechDataArguments, SpeechModelArguments

SCHEMA = Schema(SpeechDataArguments, SpeechModelArguments, description=__doc__)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run with the flags of ``argv`` (None: the process's); returns what is in all_results.json."""
    settings = SCHEMA.parse(argv)
    # Imported once the flags are right: these take seconds.
    from finetune.data import speech as data
    from finetune.engine import launch, run, trainer
    from finetune.models import speech, tuning
    from finetune.objectives.ctc import CTC

    with launch.start(settings) as accelerator:
        with accelerator.main_process_first():
            task, rows = data.load(settings.data, settings.train.do_predict)
        texts = data.texts(rows)
        tokenizer = speech.load_tokenizer(settings.model, texts[task.train_split])
        config = speech.load_config(settings.model, tokenizer)
        processor = speech.load_processor(settings.model, config, tokenizer)
        model = speech.load_speech_model(settings, config)
        batches = data.loaders(settings, task, rows, processor, partial(speech.frames, model))
        model = tuning.tuned(model, settings.filter)
        objective = CTC(task, tokenizer, texts)
        work = trainer.Trainer(accelerator, model, batches, objective, settings)
        return run.run(work, processor)


if __name__ == "__main__":
    exit_with(main)
