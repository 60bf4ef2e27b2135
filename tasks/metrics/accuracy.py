"""Accuracy as a module of the library `evaluate`."""

from .functions import accuracy
from .module import Module


class Accuracy(Module):
    """The share of predicted labels that equal the reference."""

    function = staticmethod(accuracy)
    url = "https://scikit-learn.org/stable/modules/generated/sklearn.metrics.accuracy_score.html"
