"""The word error rate as a module of the library `evaluate`."""

from .functions import wer
from .module import ErrorRate


class Wer(ErrorRate):
    """Wrong, missing and added words: 0 is best, and 1 is as many errors as words."""

    function = staticmethod(wer)
