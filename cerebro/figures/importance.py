"""Importance of hyperparameters: which ones separate the best models from the others.

The method is PED-ANOVA (Watanabe, Bansal, Hutter: "PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in
Arbitrary Subspaces", IJCAI 2023, section 4.2): the Pearson divergence between a hyperparameter's distribution among
the best models and among all. It considers the direction of the metric, because differences between bad and worse
models do not count. It needs no surrogate model, so it works for grids and random search, for categories and numbers.

Two things differ from the paper. First, densities are histograms instead of kernel estimates: a grid has few values,
and bins of equal counts give the same result for a learning rate and its logarithm. Second, the expected divergence by
chance is subtracted. With t best models of n, chosen at random, the divergence of k bins has the mean ``(k - 1)(n - t)
/ (t (n - 1))`` (the counts are hypergeometric). Without this, a hyperparameter with many values would look important
in a small sample. A hyperparameter counts only if its divergence is significant: divided by that mean and times k - 1,
it is Pearson's statistic, chi-squared with k - 1 degrees of freedom. The significance level is 5 % for all
hyperparameters together (Bonferroni).

`cerebro.client.reporting.drawings` and `dispatcher.analysis.figures` call it. It gives no answer for fewer than 16
models with a value, and it does not see interactions of hyperparameters.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from pydantic import JsonValue

from cerebro.figures.frame import Figure, axis, cut, empty, figure, lines, text, wrapped
from cerebro.figures.hyperparams import identity, is_number, numbers_of, values_of, varying
from cerebro.figures.models import ModelSummary
from cerebro.figures.palette import THEME_COLORS, Theme, colour

MINIMUM = 16
"""Minimum number of models with a value: a quarter are four, and fewer mean nothing."""

_BEST = 0.25
"""Share of models that count as the best; the paper's gamma'."""

_BINS = 6
"""Maximum number of bins for numbers: more would have too few of the best models each."""

_ERROR = 0.05
"""Probability that any hyperparameter without influence is reported."""

METHOD = "PED-ANOVA, best quarter against all models, histograms, chance subtracted, significant at 5 %"


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """Share of one hyperparameter, 0 to 1."""

    name: str
    share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Importance:
    """Importance of each hyperparameter.

    Attributes:
        method: description of the method.
        sample: description of the compared models.
        shares: largest first, with a sum of 1; empty without an answer.
        declined: reason for a missing answer, else empty.
    """

    method: str
    sample: str
    shares: tuple[Share, ...] = ()
    declined: str = ""


def importance_of(rows: Sequence[ModelSummary], *, mode: Literal["min", "max"]) -> Importance:
    """Compute how much each hyperparameter separates the best models from the others.

    Args:
        rows: models of a run. Failed models and models without a value are ignored.
        mode: ``"max"`` if larger values of the objective are better.

    Returns:
        Shares of the varying hyperparameters; 0 if chance explains the divergence. These are main effects: two
        hyperparameters that matter only in combination look unimportant.
    """
    scored = [(row, row.best) for row in rows if row.failure is None and row.best is not None]
    sample = f"{len(rows):,} models"
    if len(scored) < len(rows):
        sample = f"{len(scored):,} of {sample}, without failed models and models without a value"
    if len(scored) < MINIMUM:
        need = f"importance needs {MINIMUM} models with a value that have not failed"
        return Importance(method=METHOD, sample=f"here: {len(scored)} of {len(rows)}", declined=need)
    names = varying(row for row, _ in scored)
    if not names:
        return Importance(method=METHOD, sample=sample, declined="no hyperparameter varies")
    best = _best([value for _, value in scored], mode)
    if len(best) == len(scored):
        return Importance(method=METHOD, sample=sample, declined="all models are equally good")
    sample += f"; the best {len(best):,} against all"
    divergences = {
        name: _divergence(_bins(values_of(name, (row for row, _ in scored))), best, _ERROR / len(names))
        for name in names
    }
    total = sum(divergences.values())
    if total <= 0:
        reason = "no hyperparameter separates the best models from the others better than chance"
        return Importance(method=METHOD, sample=sample, declined=reason)
    shares = [Share(name=name, share=divergence / total) for name, divergence in divergences.items()]
    return Importance(
        method=METHOD, sample=sample, shares=tuple(sorted(shares, key=lambda s: (-s.share, s.name)))
    )


def _best(values: Sequence[float], mode: str) -> frozenset[int]:
    """Return the positions of the best quarter; equally good models are all in it or all out, whichever is closer."""
    sign = -1 if mode == "max" else 1
    losses = [sign * value for value in values]
    wanted = max(1, math.ceil(_BEST * len(values)))
    last = sorted(losses)[wanted - 1]
    without = frozenset(i for i, loss in enumerate(losses) if loss < last)
    tied = frozenset(i for i, loss in enumerate(losses) if loss <= last)
    return without if without and wanted - len(without) < len(tied) - wanted else tied


def _bins(values: Sequence[JsonValue]) -> list[Hashable]:
    """Return each value's bin: the value, or one of about equally full intervals for many numbers.

    Models without the hyperparameter have a bin of their own.
    """
    keys = [identity(value) for value in values]
    present = [value for value in values if value is not None]
    if all(is_number(value) for value in present) and len(set(keys)) > _BINS:
        ranked = sorted(numbers_of(present))
        edges = sorted({ranked[len(ranked) * i // _BINS] for i in range(1, _BINS)})
        return [
            bisect_right(edges, value) if isinstance(value, int | float) else key
            for key, value in zip(keys, values, strict=True)
        ]
    return keys


def _divergence(bins: Sequence[Hashable], best: frozenset[int], error: float) -> float:
    """Return the Pearson divergence of the best models' histogram minus its mean by chance, 0 if not significant."""
    everywhere, among_best = Counter(bins), Counter(bins[i] for i in best)
    n, t, k = len(bins), len(best), len(everywhere)
    if k == 1:
        return 0.0
    statistic = sum(
        count / n * (among_best[bin_] * n / (t * count) - 1) ** 2 for bin_, count in everywhere.items()
    )
    by_chance = (k - 1) * (n - t) / (t * (n - 1))
    return statistic - by_chance if statistic * (k - 1) / by_chance > _chi_squared(k - 1, 1 - error) else 0.0


def _chi_squared(freedom: int, probability: float) -> float:
    """Return a quantile of the chi-squared distribution.

    Wilson and Hilferty, PNAS 17, 1931: its cube root is nearly normal.
    """
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + NormalDist().inv_cdf(probability) * math.sqrt(spread)) ** 3


# --- drawing ------------------------------------------------------------------------------------

_MAX_BARS = 20
_BAR_PX = 28


def importance(result: Importance, *, theme: Theme = "light") -> Figure:
    """Draw the shares, largest on top, or the reason for a missing answer."""
    title = "Importance of hyperparameters"
    if result.declined:
        return empty("importance", f"{result.declined} ({result.sample})", theme=theme, title=title)
    colors = THEME_COLORS[theme]
    shown = result.shares[:_MAX_BARS]
    if len(shown) < len(result.shares):
        title += f": {len(shown)} of {len(result.shares)}"
    caption = wrapped(f"{result.method}; {result.sample}")
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": [share.share for share in shown],
        "y": list(range(len(shown))),
        "text": [f"{share.share:.0%}" for share in shown],
        "textposition": "outside",
        "cliponaxis": False,
        "textfont": {"color": colors.ink},
        "marker": {"color": colour(0, theme)},
        "hoverinfo": "text",
        "hovertext": [
            lines(share.name, f"{share.share:.1%} of the difference between the best models and the others")
            for share in shown
        ],
        "customdata": [[share.name] for share in shown],
    }
    return figure(
        "importance",
        [trace],
        theme=theme,
        title=title,
        description=f"{result.method}; {result.sample}. "
        + ", ".join(f"{share.name} {share.share:.0%}" for share in shown)
        + ".",
        table=cut(
            ((share.name, round(share.share, 4)) for share in result.shares), ("hyperparameter", "share")
        ),
        layout={
            "height": 170 + _BAR_PX * len(shown),
            "xaxis": axis(colors, tickformat=".0%", range=[0, 1.08]) | {"title": {"text": caption}},
            "yaxis": axis(
                colors,
                tickvals=list(range(len(shown))),
                ticktext=[text(share.name) for share in shown],
                autorange="reversed",
            ),
        },
    )
