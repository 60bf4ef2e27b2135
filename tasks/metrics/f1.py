"""F1 as a module of the library `evaluate`."""

from .functions import f1
from .module import Module


class F1(Module):
    """The harmonic mean of precision and recall of the label 1, or a mean over all labels."""

    function = staticmethod(f1)
    url = "https://scikit-learn.org/stable/modules/generated/sklearn.metrics.f1_score.html"
    inputs = f"{Module.inputs} average: binary, macro, micro or weighted."
