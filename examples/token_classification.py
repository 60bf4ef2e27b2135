"""Named entities with GFSA: the small BERT of this repository, transformers' Trainer, F1 of spans.

    python examples/token_classification.py [STEPS]

The rows are made here: names of one or two words, which only the context tells apart. Your own
have the words of a sentence in ``tokens``, and in ``tags`` ``O``, ``B-PER`` or ``I-PER`` of each.
"""

import random
import sys
from itertools import pairwise
from pathlib import Path

import torch
import transformers
from datasets import Dataset

import hf_graphattn as ga

MODEL = Path(__file__).parents[1] / "finetune" / "demo" / "bert"
SENTENCES = ("The PER works in LOC .", "In LOC we met PER .", "PER left LOC and called PER .")
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)


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


def encode(row: dict) -> dict:
    """The label of a word is that of its first piece; -100 is none."""
    encoded = tokenizer(row["tokens"], is_split_into_words=True, truncation=True)
    pairs = pairwise([None, *encoded.word_ids()])
    labels = [-100 if x in (None, y) else LABELS.index(row["tags"][x]) for y, x in pairs]
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


def metrics(output) -> dict[str, float]:
    counts = [0, 0, 0]
    for guesses, labels in zip(output.predictions.argmax(-1), output.label_ids, strict=True):
        one, two = (spans([LABELS[i] for i in x[labels != -100]]) for x in (guesses, labels))
        counts = [n + len(x) for n, x in zip(counts, (one, two, one & two), strict=True)]
    return {"f1": 2 * counts[2] / max(counts[0] + counts[1], 1)}


def main(steps: int = 180) -> None:
    splits = made().map(encode, remove_columns=["tokens", "tags"]).train_test_split(0.2, seed=0)
    auto_class = transformers.AutoModelForTokenClassification
    model = ga.patch_model(auto_class.from_pretrained(MODEL, num_labels=5), ga.GFSAConfig(order=3))
    groups = ga.optimizer_groups(model, 1e-3, weight_decay=0.01, filter_learning_rate=1e-2)
    options = {"max_steps": steps, "per_device_train_batch_size": 16, "save_strategy": "no"}
    trainer = transformers.Trainer(
        model,
        transformers.TrainingArguments("runs/token-classification", report_to="none", **options),
        transformers.DataCollatorForTokenClassification(tokenizer),
        splits["train"],
        splits["test"],
        compute_metrics=metrics,
        optimizers=(torch.optim.AdamW(groups), None),
    )
    trainer.train()
    print(f"F1 {trainer.evaluate()['eval_f1']:.3f}\n{ga.report(model)}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
