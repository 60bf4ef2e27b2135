"""The word error rate as a module of the library `evaluate`."""

from .functions import wer
from .module import LEVENSHTEIN, Module


class Wer(Module):
    """Wrong, missing and added words: 0 is best, and 1 is as many errors as words."""

    greater_is_better = False
    function = staticmethod(wer)
    cited = LEVENSHTEIN
    url = "https://jitsi.github.io/jiwer/"
    inputs = "predictions and references: texts."
    kind = "string"
