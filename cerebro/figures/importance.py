"""Importance: a bar per hyper-parameter."""

from __future__ import annotations

from cerebro.analysis import Importance
from cerebro.figures.frame import Figure, axis, cut, empty, figure, lines, text, wrapped
from cerebro.figures.palette import LOOKS, Theme, colour

_MOST_BARS = 20
_BAR_PX = 28


def importance(found: Importance, *, theme: Theme = "light") -> Figure:
    """Shares of what tells the best models from the others, largest on top; or why there is no answer."""
    title = "Importance of hyper-parameters"
    if found.declined:
        return empty("importance", f"{found.declined} ({found.sample})", theme=theme, title=title)
    look = LOOKS[theme]
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
        "textfont": {"color": look.ink},
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
            "xaxis": axis(look, tickformat=".0%", range=[0, 1.08]) | {"title": {"text": caption}},
            "yaxis": axis(
                look,
                tickvals=list(range(len(shown))),
                ticktext=[text(share.name) for share in shown],
                autorange="reversed",
            ),
        },
    )
