"""What the log says of a run as rows and numbers, for tables, pages, notebooks, reports and figures.

Pure: state in, plain values out. What only one figure draws lies with its drawing in `cerebro.figures`.
"""

from cerebro.analysis.downsample import downsample, kept
from cerebro.analysis.hyperparams import Scale, numbers_of, scale, values_of, varying, word
from cerebro.analysis.scores import scores, values_at
from cerebro.analysis.summary import ModelSummary, summaries, summary
from cerebro.analysis.tested import Measured, averaged, tested, tests_of

__all__ = [
    "Measured",
    "ModelSummary",
    "Scale",
    "averaged",
    "downsample",
    "kept",
    "numbers_of",
    "scale",
    "scores",
    "summaries",
    "summary",
    "tested",
    "tests_of",
    "values_at",
    "values_of",
    "varying",
    "word",
]
