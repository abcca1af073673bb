"""Progress in a notebook: bars and a table of up to 20 models as static HTML, for `Progress`.

The last drawing stays in the notebook's file, so it is visible without a kernel and in exports. A widget would leave
nothing behind.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from cerebro import figures
from cerebro.client.progress.bars import NOT_SHOWN, ProgressBar, QueueDisplay, bars, epoch_bars, outcome
from cerebro.contract.runs import FitRequest
from cerebro.figures import ModelSummary
from cerebro.figures.frame import number
from cerebro.state import ExperimentState, Run
from cerebro.state.reports import state_words
from cerebro.state.runs import rungs
from cerebro.state.runs.goals import forecast_lines
from cerebro.state.tasks import verification_texts

_MAX_EPOCH_BARS = 12
"""Maximum number of epoch bars; completed epochs are combined into one."""

_MAX_MODELS = 20
"""Rows of the table: training models, then the best."""

_MAX_HYPERPARAMETERS = 4
"""Hyperparameter columns of the table."""

_NUMBERS = ' style="text-align:right;font-variant-numeric:tabular-nums"'


class NotebookScreen:
    """Output of one notebook cell."""

    def __init__(self) -> None:
        self._shown: Any = None
        self._html = ""

    def draw(
        self,
        state: ExperimentState,
        run: Run,
        rows: Mapping[str, int],
        reason: str,
        queue: QueueDisplay = NOT_SHOWN,
    ) -> None:
        """Draw a planned or waiting run."""
        html = rendered(state, run, rows, reason, queue)
        if html == self._html:
            return
        self._html = html
        bundle = {"text/html": html, "text/plain": _plain(state, run, rows)}
        if self._shown is None:
            from IPython.display import display

            self._shown = display(bundle, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._shown.update(bundle, raw=True)

    def close(self) -> None:
        """End drawing; the last output stays."""


def rendered(
    state: ExperimentState,
    run: Run,
    rows: Mapping[str, int],
    reason: str,
    queue: QueueDisplay = NOT_SHOWN,
) -> str:
    """Return the run as HTML: state, queue, bars, and a table of models."""
    is_fit = isinstance(run.request, FitRequest)
    status = ", ".join(part for part in (state_words.run(run), outcome(run), reason) if part)
    parts = [f"<p><strong>{escape(run.id)}</strong>: {escape(status)}</p>"]
    if queue.line:
        parts.append(f"<p>{escape(queue.line)}</p>")
    parts.append(_bars_html(_folded(epoch_bars(run)) if is_fit else bars(state, run, rows)))
    if is_fit:
        lines = (
            *rungs.lines(run),
            *forecast_lines(run, time.time()),
            *verification_texts.lines(run.verifications),
        )
        parts += [f"<p>{escape(line)}</p>" for line in lines]
        parts.append(_models(run))
    return "\n".join(part for part in parts if part)


def _plain(state: ExperimentState, run: Run, rows: Mapping[str, int]) -> str:
    lines = (f"{bar.name}: {_fraction_text(bar)} {bar.note}".rstrip() for bar in bars(state, run, rows))
    return "\n".join(lines) or f"{run.id}: {state_words.run(run)}"


def _fraction_text(bar: ProgressBar) -> str:
    return f"{bar.done:,}/{bar.total:,}" if bar.total else f"{bar.done:,} {bar.label}s"


# --- bars -----------------------------------------------------------------------------------------


def _folded(bars: list[ProgressBar]) -> list[ProgressBar]:
    """Combine completed epochs into one bar if there are many."""
    num_done = sum(bar.done >= bar.total for bar in bars)
    num_hidden = max(0, min(num_done, len(bars) - _MAX_EPOCH_BARS))
    if not num_hidden:
        return bars[:_MAX_EPOCH_BARS]
    past = bars[:num_hidden]
    combined = ProgressBar(
        name=f"epochs 1 to {num_hidden}",
        done=sum(b.done for b in past),
        total=sum(b.total for b in past),
        label="sub-epoch",
    )
    return [combined, *bars[num_hidden : num_hidden + _MAX_EPOCH_BARS]]


def _bars_html(bars: Iterable[ProgressBar]) -> str:
    rows = [
        f"<tr><th scope='row' style='text-align:left'>{escape(bar.name)}</th>"
        f"<td><progress value='{bar.done}' max='{max(bar.total, 1)}' style='width:20em'></progress></td>"
        f"<td{_NUMBERS}>{bar.done:,} of {bar.total:,} {bar.label}s</td><td>{escape(bar.note)}</td></tr>"
        for bar in bars
    ]
    return f"<table><tbody>{''.join(rows)}</tbody></table>" if rows else ""


# --- models ---------------------------------------------------------------------------------------


def _models(run: Run) -> str:
    shown = _shown_models(run)
    if not shown:
        return ""
    assert isinstance(run.request, FitRequest)
    metric = run.request.metric
    names = figures.varying(shown)[:_MAX_HYPERPARAMETERS]
    origin = ["from"] if any(row.parent for row in shown) else []
    heads = ("model", "state", "epoch", f"latest {metric}", f"best {metric}", "at epoch", *origin, *names)
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in heads)
    body = "".join(_row(row, names, has_origins=bool(origin)) for row in shown)
    count = f"{len(shown):,} of {len(run.models):,} models" if len(shown) < len(run.models) else "Models"
    caption = f"{count}: those at work, then the best"
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _shown_models(run: Run) -> list[ModelSummary]:
    """Return training models, then the others from the best on."""
    assert isinstance(run.request, FitRequest)
    name, sign = run.request.metric, 1 if run.request.mode == "min" else -1

    def rank(item: tuple[int, str]) -> tuple[bool, bool, float, int]:
        index, model_id = item
        model = run.models[model_id]
        epoch = run.best_epoch(model)
        best = model.metric(name, epoch, validated=run.is_validated) if epoch else None
        return not state_words.is_at_work(model, run), best is None, sign * (best or 0.0), index

    ranked = sorted(enumerate(run.models), key=rank)[:_MAX_MODELS]
    return [figures.summary(run, run.models[model_id], index) for index, model_id in ranked]


def _row(row: ModelSummary, names: Iterable[str], *, has_origins: bool) -> str:
    values = (
        f"{row.progress.epoch} of {row.progress.epochs}",
        number(row.latest) if row.latest is not None else "",
        number(row.best) if row.best is not None else "",
        str(row.best_epoch or ""),
    )
    cells = "".join(f"<td{_NUMBERS}>{escape(value)}</td>" for value in values)
    origin = f"<td>{escape(str(row.parent or ''))}</td>" if has_origins else ""
    hyperparams = "".join(f"<td>{escape(figures.word(row.hyperparams.get(name)))}</td>" for name in names)
    return f"<tr><th scope='row'>{escape(row.id)}</th><td>{escape(row.state)}</td>{cells}{origin}{hyperparams}</tr>"
