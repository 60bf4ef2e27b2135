"""Named entities with GFSA: the small BERT of this repository, transformers' Trainer, F1 of spans.

    python examples/token_classification.py [STEPS]

The rows are made here: names of one or two words, which only the context tells apart. Your own
have the words of a sentence in ``tokens``, and in ``tags`` ``O``, ``B-PER`` or ``I-PER`` of each.
"""

import random
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    Trainer,
    TrainingArguments,
)

import hf_graphattn as ga

MODEL = Path(__file__).parents[1] / "finetune" / "demo" / "bert"
SENTENCES = ("The PER works in LOC .", "In LOC we met PER .", "PER left LOC and called PER .")
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
tokenizer = AutoTokenizer.from_pretrained(MODEL)


def made(count: int = 1200) -> Dataset:
    draw, rows = random.Random(0), []
    for _ in range(count):
        pairs: list[tuple[str, str]] = []
        for word in draw.choice(SENTENCES).split():
            tags = [f"B-{word}", f"I-{word}"][: draw.randint(1, 2)]
            names = [("".join(draw.choices("abdeiklmnorstu", k=5)), tag) for tag in tags]
            pairs += names if word in ("PER", "LOC") else [(word, "O")]
        rows.append({"tokens": [word for word, _ in pairs], "tags": [tag for _, tag in pairs]})
    return Dataset.from_list(rows)


def encode(row: dict[str, Any]) -> dict[str, Any]:
    """The label of a word is that of its first piece; -100 is none."""
    encoded = tokenizer(row["tokens"], is_split_into_words=True, truncation=True)
    labels, seen = [], {None}
    for word in encoded.word_ids():
        labels.append(-100 if word in seen else LABELS.index(row["tags"][word]))
        seen.add(word)
    return {**encoded, "labels": labels}


def spans(tags: list[str]) -> set[tuple[int, int, str]]:
    """Beginning, end and kind of each entity."""
    entities, start, kind = set(), 0, ""
    for i, tag in enumerate([*tags, "O"]):
        begins, _, name = tag.partition("-")
        if begins == "B" or name != kind:
            entities |= {(start, i, kind)} if kind else set()
            start, kind = i, name
    return entities


def metrics(output: Any) -> dict[str, float]:
    counts = [0, 0, 0]
    for guesses, labels in zip(output.predictions.argmax(-1), output.label_ids, strict=True):
        one, two = (spans([LABELS[i] for i in x[labels != -100]]) for x in (guesses, labels))
        counts = [n + len(x) for n, x in zip(counts, (one, two, one & two), strict=True)]
    return {"f1": 2 * counts[2] / max(counts[0] + counts[1], 1)}


def main(steps: int = 180) -> None:
    splits = made().map(encode, remove_columns=["tokens", "tags"]).train_test_split(0.2, seed=0)
    model = AutoModelForTokenClassification.from_pretrained(MODEL, num_labels=len(LABELS))
    ga.patch_model(model, ga.GFSAConfig(order=3))
    groups = ga.optimizer_groups(model, 1e-3, weight_decay=0.01, filter_learning_rate=1e-2)
    options = {"max_steps": steps, "per_device_train_batch_size": 16, "save_strategy": "no"}
    trainer = Trainer(
        model,
        TrainingArguments("runs/token-classification", report_to="none", **options),
        DataCollatorForTokenClassification(tokenizer),
        splits["train"],
        splits["test"],
        compute_metrics=metrics,
        optimizers=(torch.optim.AdamW(groups), None),
    )
    trainer.train()
    print(f"F1 {trainer.evaluate()['eval_f1']:.3f}\n{ga.report(model)}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
