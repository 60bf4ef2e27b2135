"""Looking inside: what attention and filters do to a model's tokens, measured and drawn.

`diagnose` measures: `collect` runs the model, `measure` has the formulas, `result` holds the
numbers. `figures` and `save_html` show one diagnosis, or several side by side; matplotlib and
pandas are imported when a figure or a data frame is made.
"""

from .collect import diagnose
from .diagnosis import Diagnosis, save_html
from .plots import figures
from .result import Part, Summary

__all__ = ["Diagnosis", "Part", "Summary", "diagnose", "figures", "save_html"]
