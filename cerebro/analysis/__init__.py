"""What the log says of a run, in the shapes that pages, notebooks and reports show: rows, curves, spans, importance.

Pure: state in, plain values out. Knows nothing of figures (`cerebro.figures`) and of HTTP.
"""

from cerebro.analysis.curves import Axis, Curve, CurveSplit, epoch_curves, shown_split
from cerebro.analysis.downsample import downsample, kept
from cerebro.analysis.etl import SplitProgress, etl_progress
from cerebro.analysis.hyperparams import Scale, numbers_of, scale, values_of, varying, word
from cerebro.analysis.importance import Importance, Share, importance
from cerebro.analysis.planned import PlannedSpan, planned
from cerebro.analysis.scores import scores, values_at
from cerebro.analysis.spans import Landmarks, Outcome, Span, crew, landmarks, spans
from cerebro.analysis.summary import ModelSummary, summaries, summary
from cerebro.analysis.tested import Measured, averaged, tested, tests_of

__all__ = [
    "Axis",
    "Curve",
    "CurveSplit",
    "Importance",
    "Landmarks",
    "Measured",
    "ModelSummary",
    "Outcome",
    "PlannedSpan",
    "Scale",
    "Share",
    "Span",
    "SplitProgress",
    "averaged",
    "crew",
    "downsample",
    "epoch_curves",
    "etl_progress",
    "importance",
    "kept",
    "landmarks",
    "numbers_of",
    "planned",
    "scale",
    "scores",
    "shown_split",
    "spans",
    "summaries",
    "summary",
    "tested",
    "tests_of",
    "values_at",
    "values_of",
    "varying",
    "word",
]
