"""Text whose special tokens are only text, as source code has them.

A function that parses `</s>` must not end its own sequence there: T5's and BART's classification
reads the hidden state of the end token, and refuses a batch whose rows hold different numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase


def literal(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The texts with a space inside each special token's spelling: ``</s>`` becomes ``< /s>``.

    ``split_special_tokens=True`` does not do: a unigram vocabulary, T5's or PLBART's, holds the
    special tokens as ordinary pieces and finds them in the text all the same.
    """
    spellings = {str(token) for token in tokenizer.all_special_tokens}
    spellings |= {str(t) for t in tokenizer.added_tokens_decoder.values() if t.special}
    # The longest first: `<s>` may begin another one. A single character cannot be parted.
    parted = sorted((s for s in spellings if len(s) > 1), key=len, reverse=True)
    if not parted:
        return list(texts)
    pattern = re.compile("|".join(map(re.escape, parted)))
    return [pattern.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text) for text in texts]
