"""The character error rate as a module of the library `evaluate`."""

from .functions import cer
from .module import ErrorRate


class Cer(ErrorRate):
    """Wrong, missing and added characters: 0 is best, and 1 is as many errors as characters."""

    function = staticmethod(cer)
