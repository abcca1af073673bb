"""Which hyper-parameters decide whether a model is among the best.

The method is PED-ANOVA (Watanabe, Bansal, Hutter: "PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in
Arbitrary Subspaces", IJCAI 2023, section 4.2): how far the distribution of a hyper-parameter among the best models is
from its distribution among all, as a Pearson divergence. It obeys the direction of the metric, because only the best
models are compared: what merely separates bad models from worse ones counts nothing. And it needs no surrogate model,
so it is as right for a grid as for random search, for categories as for numbers.

Two things differ from the paper. Densities are histograms instead of kernel estimates: a grid has few values, and bins
of equal counts make the result the same for a learning rate and for its logarithm. And what chance alone would give is
taken off: with t best models of n, dealt at random, the divergence of k bins is ``(k - 1)(n - t) / (t (n - 1))`` in
the mean over all ways to deal them (the counts are hypergeometric). Without that, a hyper-parameter with many values
would look important in any small sample. A hyper-parameter counts at all only if its divergence is more than chance
explains: divided by that mean and times k - 1, it is Pearson's statistic, chi-squared with k - 1 degrees of freedom.
Its limit leaves one run in twenty of which nothing matters an answer, however many hyper-parameters vary (Bonferroni).
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
"""Fewest models with a value: a quarter of them are four, fewer would say nothing."""

_BEST = 0.25
"""Share of the models that are called the best; the paper's gamma'."""

_BINS = 6
"""Most bins of a number: more would hold too few of the best models each."""

_ERROR = 0.05
"""Probability that, of hyper-parameters that do not matter, any is said to."""

METHOD = "PED-ANOVA, best quarter against all models, histograms, chance taken off, significant at 5 %"


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """Of what tells the best models from the others: the part of one hyper-parameter, 0 to 1."""

    name: str
    share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Importance:
    """How much each hyper-parameter matters.

    Attributes:
        method: in words.
        sample: which models were looked at, in words.
        shares: largest first, their sum is 1; empty if it was declined.
        declined: why there is no answer; empty if there is one.
    """

    method: str
    sample: str
    shares: tuple[Share, ...] = ()
    declined: str = ""


def importance_of(rows: Sequence[ModelSummary], *, mode: Literal["min", "max"]) -> Importance:
    """How much each hyper-parameter matters for being among the best models.

    Args:
        rows: models of a run. Those that failed, or have no value yet, are left out.
        mode: ``"max"`` if more of the objective is better.

    Returns:
        Shares of the varying hyper-parameters, 0 of one that chance explains. Main effects only: two that matter
        together alone look unimportant.
    """
    scored = [(row, row.best) for row in rows if row.failure is None and row.best is not None]
    sample = f"{len(rows):,} models"
    if len(scored) < len(rows):
        sample = f"{len(scored):,} of {sample}; those that failed or have no value are left out"
    if len(scored) < MINIMUM:
        need = f"importance needs {MINIMUM} models with a value that have not failed"
        return Importance(method=METHOD, sample=f"here: {len(scored)} of {len(rows)}", declined=need)
    names = varying(row for row, _ in scored)
    if not names:
        return Importance(method=METHOD, sample=sample, declined="no hyper-parameter varies")
    best = _best([value for _, value in scored], mode)
    if len(best) == len(scored):
        return Importance(method=METHOD, sample=sample, declined="all models are equally good")
    sample += f"; the best {len(best):,} of them against all"
    divergences = {
        name: _divergence(_bins(values_of(name, (row for row, _ in scored))), best, _ERROR / len(names))
        for name in names
    }
    total = sum(divergences.values())
    if total <= 0:
        reason = "no hyper-parameter tells the best models from the others better than chance does"
        return Importance(method=METHOD, sample=sample, declined=reason)
    shares = [Share(name=name, share=divergence / total) for name, divergence in divergences.items()]
    return Importance(
        method=METHOD, sample=sample, shares=tuple(sorted(shares, key=lambda s: (-s.share, s.name)))
    )


def _best(values: Sequence[float], mode: str) -> frozenset[int]:
    """Positions of the best quarter. Of models that are equally good either all are in it or none: what is nearer."""
    sign = -1 if mode == "max" else 1
    losses = [sign * value for value in values]
    wanted = max(1, math.ceil(_BEST * len(values)))
    last = sorted(losses)[wanted - 1]
    without = frozenset(i for i, loss in enumerate(losses) if loss < last)
    tied = frozenset(i for i, loss in enumerate(losses) if loss <= last)
    return without if without and wanted - len(without) < len(tied) - wanted else tied


def _bins(values: Sequence[JsonValue]) -> list[Hashable]:
    """Each value's bin: itself, or, of numbers with many values, one of about equally full intervals."""
    keys = [identity(value) for value in values]
    if all(is_number(value) for value in values) and len(set(keys)) > _BINS:
        numbers = numbers_of(values)
        ranked = sorted(numbers)
        edges = sorted({ranked[len(ranked) * i // _BINS] for i in range(1, _BINS)})
        return [bisect_right(edges, number) for number in numbers]
    return keys


def _divergence(bins: Sequence[Hashable], best: frozenset[int], error: float) -> float:
    """Pearson divergence of the best models' histogram from that of all, less its mean by chance; 0 unless larger than
    chance makes it with probability `error`."""
    everywhere, there = Counter(bins), Counter(bins[i] for i in best)
    n, t, k = len(bins), len(best), len(everywhere)
    if k == 1:
        return 0.0
    found = sum(count / n * (there[bin_] * n / (t * count) - 1) ** 2 for bin_, count in everywhere.items())
    by_chance = (k - 1) * (n - t) / (t * (n - 1))
    return found - by_chance if found * (k - 1) / by_chance > _chi_squared(k - 1, 1 - error) else 0.0


def _chi_squared(freedom: int, probability: float) -> float:
    """Quantile of the chi-squared distribution (Wilson and Hilferty, PNAS 17, 1931: its cube root is nearly normal)."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + NormalDist().inv_cdf(probability) * math.sqrt(spread)) ** 3


# --- its drawing --------------------------------------------------------------------------------

_MOST_BARS = 20
_BAR_PX = 28


def importance(found: Importance, *, theme: Theme = "light") -> Figure:
    """Shares of what tells the best models from the others, largest on top; or why there is no answer."""
    title = "Importance of hyper-parameters"
    if found.declined:
        return empty("importance", f"{found.declined} ({found.sample})", theme=theme, title=title)
    colors = THEME_COLORS[theme]
    shown = found.shares[:_MOST_BARS]
    if len(shown) < len(found.shares):
        title += f": {len(shown)} of {len(found.shares)}"
    caption = wrapped(f"{found.method}; {found.sample}")
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
            lines(share.name, f"{share.share:.1%} of what tells the best models from the others")
            for share in shown
        ],
        "customdata": [[share.name] for share in shown],
    }
    return figure(
        "importance",
        [trace],
        theme=theme,
        title=title,
        description=f"{found.method}; {found.sample}. "
        + ", ".join(f"{share.name} {share.share:.0%}" for share in shown)
        + ".",
        table=cut(
            ((share.name, round(share.share, 4)) for share in found.shares), ("hyper-parameter", "share")
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
