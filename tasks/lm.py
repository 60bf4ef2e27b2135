"""These are texts for language models: Penn Treebank, WikiText-2, WikiText-103 and a demo text.

Words are counted as the data sets' own vocabularies count: white space separates them, and the end
of each row's line is one more. That gives 82,430 for the test split of Penn Treebank and 245,569
for that of WikiText-2. So that each counted end of line is predicted, each row ends in a token for
it.
"""

from __future__ import annotations

import math
from typing import Any

from datasets import DatasetDict

from tasks import Split, Task, demo_lm
from tasks.metrics import BITS_PER_BYTE, LOSS, PERPLEXITY, WORD_PERPLEXITY

FAMILY = "lm"
# Perplexity a word is measured on word-level texts only, bits a byte without unknown tokens only.
METRICS = (LOSS, PERPLEXITY, WORD_PERPLEXITY, BITS_PER_BYTE)


def language_task(name: str, text_column: str, **others: Any) -> Task:
    """Return a task of this family, with the splits and the metrics that all of them have."""
    return Task(
        name=name,
        family=FAMILY,
        objective="lm",
        text_columns=(text_column,),
        label_column="",
        metrics=METRICS,
        main_metric=PERPLEXITY.name,
        test_splits=(Split("test"),),
        **others,
    )


def _wikitext(name: str, size: int) -> Task:
    """Return WikiText (Merity et al., arXiv 1609.07843), with its blank and title rows.

    This is the raw form, as in GFSA's published runs; in `wikitext-N-v1` rare words are `<unk>`.
    """
    return language_task(
        name,
        "text",
        dataset_name="Salesforce/wikitext",
        dataset_config=f"wikitext-{size}-raw-v1",
        row_end="newline",
        word_level=True,
    )


TASKS = (
    # This is Mikolov's preparation: lower case, 10,000 words, `<unk>` for the others, `N` for
    # numbers, and no line breaks. The hub's main branch is a script that `datasets` no longer
    # runs, hence the revision.
    language_task(
        "ptb",
        "sentence",
        dataset_name="ptb-text-only/ptb_text_only",
        revision="refs/convert/parquet",
        data_dir="penn_treebank",
        row_end="eos",
        word_level=True,
    ),
    _wikitext("wikitext2", 2),
    _wikitext("wikitext103", 103),
    language_task("demo", "text", builder=demo_lm.build, row_end="newline"),
)


def own_task(text_column: str, rows: DatasetDict | None = None, **others: Any) -> Task:
    """Return a task of someone's own rows, or of another source given in ``others``."""
    builder = None if rows is None else lambda: rows
    return language_task("own_text", text_column, builder=builder, **others)


def perplexities(
    nats: float,
    tokens: int,
    words_per_token: float | None = None,
    bytes_per_token: float | None = None,
) -> dict[str, float]:
    """Return ``loss`` (nats a token), ``perplexity``, ``word_perplexity`` and ``bits_per_byte``.

    Args:
        nats: negative log-probability, summed over the predicted tokens.
        tokens: number of predicted tokens, at least 1.
        words_per_token: words of the text over its tokens, or None.
        bytes_per_token: bytes of the text over its tokens, or None.
    """
    loss = nats / tokens
    found = {"loss": loss, "perplexity": _exp(loss)}
    if words_per_token is not None:
        found["word_perplexity"] = _exp(loss / words_per_token)
    if bytes_per_token is not None:
        found["bits_per_byte"] = loss / bytes_per_token / math.log(2)
    return found


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def count_bytes(text: str, row_end: str) -> int:
    """Count the bytes of one row in UTF-8; a token that ends it stands for the end of its line."""
    return len(text.encode()) + (row_end == "eos")


def words(text: str, row_end: str) -> int:
    """Count the words of one row as it is tokenised: also the end of its line is one."""
    return len(text.split()) + (row_end == "eos" or text.endswith("\n"))
