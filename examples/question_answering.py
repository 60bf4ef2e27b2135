"""Extractive question answering with GFSA: a small BERT, a loop with accelerate, exact matches.

    python examples/question_answering.py [EPOCHS [ROWS]]

The rows are made here. Your own have a ``question``, a ``context``, and the ``answer`` as a part of
the context, which begins at its character ``start``.
"""

import random
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

import hf_graphattn as ga

MODEL = Path(__file__).parents[1] / "finetune" / "demo" / "bert"
CONTEXTS = ("In {when} the module {what} was written by {who} .", "{who} wrote {what} in {when} .")
QUESTIONS = {"who": "Who wrote it?", "what": "What was written?", "when": "When was it written?"}
tokenizer = AutoTokenizer.from_pretrained(MODEL)


def made(count: int) -> Dataset:
    draw, rows = random.Random(0), []
    for _ in range(count):
        names = {kind: "".join(draw.choices("abdeiklmnorstu", k=5)) for kind in QUESTIONS}
        context, kind = draw.choice(CONTEXTS).format(**names), draw.choice(list(QUESTIONS))
        row = {"question": QUESTIONS[kind], "context": context, "answer": names[kind]}
        rows.append(row | {"start": context.index(names[kind])})
    return Dataset.from_list(rows)


def encode(rows: list[dict]):
    pairs = [[row[name] for row in rows] for name in ("question", "context")]
    return tokenizer(*pairs, truncation="only_second", padding=True, return_tensors="pt")


def collate(rows: list[dict]) -> dict[str, torch.Tensor]:
    batch, ends = encode(rows), [(x["start"], x["start"] + len(x["answer"]) - 1) for x in rows]
    # An answer that was cut off is at the first token.
    tokens = [[batch.char_to_token(i, x, 1) or 0 for x in pair] for i, pair in enumerate(ends)]
    start, end = torch.tensor(tokens).T
    return {**batch, "start_positions": start, "end_positions": end}


@torch.no_grad()
def answers(model: torch.nn.Module, rows: list[dict], device: torch.device) -> list[str]:
    batch, texts = encode(rows).to(device), []
    output = model(**batch)
    scores = (output.start_logits[:, :, None] + output.end_logits[:, None, :]).cpu()
    for i, row in enumerate(rows):
        inside = torch.tensor([part == 1 for part in batch.sequence_ids(i)])
        outside = ~(inside[:, None] & inside).triu()
        best = int(scores[i].masked_fill(outside, -torch.inf).argmax())
        first, last = (batch.token_to_chars(i, token) for token in divmod(best, len(inside)))
        texts.append(row["context"][first.start : last.end])
    return texts


def main(epochs: int = 4, count: int = 1500) -> None:
    torch.manual_seed(0)
    splits, accelerator = made(count).train_test_split(0.2, seed=0), Accelerator()
    model = AutoModelForQuestionAnswering.from_pretrained(MODEL)
    ga.patch_model(model, ga.GFSAConfig(order=3))
    groups = ga.optimizer_groups(model, 5e-4, weight_decay=0.01, filter_learning_rate=1e-2)
    loader = DataLoader(splits["train"], 16, shuffle=True, collate_fn=collate)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(groups), loader)
    for _ in range(epochs):
        for batch in loader:
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
    rows = splits["test"]
    texts = answers(model.eval(), rows.to_list(), accelerator.device)
    right = sum(map(str.__eq__, texts, rows["answer"]))
    print(f"exact match {right / len(rows):.3f}\n{ga.report(accelerator.unwrap_model(model))}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
