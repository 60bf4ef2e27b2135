"""Matthews' correlation as a module of the library `evaluate`."""

from .functions import matthews_correlation
from .module import Module

CITATION = """\
@article{matthews1975,
  title = {Comparison of the predicted and observed secondary structure of {T4} phage lysozyme},
  author = {Matthews, Brian W.},
  journal = {Biochimica et Biophysica Acta - Protein Structure},
  volume = {405},
  number = {2},
  pages = {442--451},
  year = {1975}
}
"""


class MatthewsCorrelation(Module):
    """Matthews' correlation coefficient of labels, from -1 to 1; 0 where one side is constant."""

    function = staticmethod(matthews_correlation)
    cited = CITATION
    url = "https://scikit-learn.org/stable/modules/generated/sklearn.metrics.matthews_corrcoef.html"
