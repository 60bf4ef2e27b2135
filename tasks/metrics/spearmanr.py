"""Spearman's rank correlation as a module of the library `evaluate`."""

from .functions import spearmanr
from .module import SCIPY, Module


class Spearmanr(Module):
    """Spearman's correlation of scores, from -1 to 1; 0 where one side is constant."""

    function = staticmethod(spearmanr)
    cited = SCIPY
    url = "https://docs.scipy.org/doc/scipy/reference/generated/scipy.stats.spearmanr.html"
    inputs = "predictions and references: scores."
    kind = "float32"
