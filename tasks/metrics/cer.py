"""The character error rate as a module of the library `evaluate`."""

from .functions import cer
from .module import LEVENSHTEIN, Module


class Cer(Module):
    """Wrong, missing and added characters: 0 is best, and 1 is as many errors as characters."""

    greater_is_better = False
    function = staticmethod(cer)
    cited = LEVENSHTEIN
    url = "https://jitsi.github.io/jiwer/"
    inputs = "predictions and references: texts."
    kind = "string"
