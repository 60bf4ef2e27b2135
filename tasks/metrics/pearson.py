"""Pearson's correlation as a module of the library `evaluate`."""

from .functions import pearson
from .module import SCIPY, Module


class Pearson(Module):
    """Pearson's correlation of scores, from -1 to 1; 0 where one side is constant."""

    function = staticmethod(pearson)
    cited = SCIPY
    url = "https://docs.scipy.org/doc/scipy/reference/generated/scipy.stats.pearsonr.html"
    inputs = "predictions and references: scores."
    kind = "float32"
