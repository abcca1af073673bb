"""An experiment's pages as runs of Weights & Biases, through its package, on the user's side alone.

The one module that imports it. W&B has no public API for values, but its package takes them with a *step* that only
grows, and drops what comes with a step that is there. The step of a value is the number of its event in the log, so
what is sent twice is there once. The id of a run is that of the page, so a run is continued, wherever from.

Without a connection (``WANDB_MODE=offline``) the package writes a folder for each call, which `wandb sync` sends. It
cannot ask what is there already, so each call writes all, under the same steps.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cerebro.errors import ExportError, TrackerUnavailableError
from cerebro.exports.projection import Page, Place, Projection, Row

log = logging.getLogger(__name__)

_EXIT = {"finished": 0, "stopped": 0, "failed": 1}
"""Exit codes by which W&B shows a run as finished or failed."""
_DELETED = "was previously created and deleted"
"""What W&B's server says of an id whose run was deleted: it never takes one anew (wandb #1192, #4897)."""

_REFUSED = re.compile(r"\b(?:returned error|HTTP) 40[13]\b")
"""What its package says where nobody has signed in, or somebody who may not: as of a connection that is lost, but for
the status."""


class _DeletedThereError(Exception):
    """Somebody has deleted a run there."""


class WandbExport:
    """Sends what a projection of one experiment shows; not thread-safe.

    Args:
        project: of W&B; by default the experiment's name.
        entity: whose it is; by default that of who has signed in.
    """

    def __init__(self, projection: Projection, *, project: str = "", entity: str = "") -> None:
        self._projection = projection
        self._project, self._entity = project or projection.record.name, entity or None
        self._rows: dict[Place, list[Row]] = {}
        self._sent: dict[Place, tuple[int, str]] = {}
        """Page -> the newest event of which it has values, and the status that it was left with."""
        self._deleted: set[Place] = set()
        _package()

    def cursor(self, place: Place) -> int:
        """Up to which event a page has its rows, as far as this process knows: W&B drops the others."""
        return self._sent[place][0] if place in self._sent else 0

    def send(self, rows: Mapping[Place, Sequence[Row]]) -> None:
        """Keep them until the log is read to its end: to begin a run takes seconds, so each is begun once."""
        for place, some in rows.items():
            self._rows.setdefault(place, []).extend(some)

    def settle(self) -> None:
        """Send all of them, and how each page stands.

        Raises:
            TrackerUnavailableError: W&B does not answer; to call it again is safe.
            ExportError: it refuses, as where nobody has signed in.
        """
        for page in self._projection.pages():
            if page.place in self._deleted:
                self._rows.pop(page.place, None)
                continue
            rows, known = self._rows.get(page.place, []), self._sent.get(page.place)
            if rows or known is None or known[1] != page.status:
                try:
                    self._write(page, rows)
                except _DeletedThereError:
                    log.warning(
                        "the run %s was deleted in W&B, and stays so; the export goes on with the others. Once it is "
                        "restored there, the next export continues it",
                        page.name,
                    )
                    self._deleted.add(page.place)
                self._sent[page.place] = (rows[-1].seq if rows else self.cursor(page.place), page.status)
                self._rows.pop(page.place, None)

    def _write(self, page: Page, rows: Sequence[Row]) -> None:
        wandb = _package()
        config: dict[str, Any] = {name: _value(text) for name, text in page.params.items()}
        try:
            run = wandb.init(
                project=self._project,
                entity=self._entity,
                id=page.id,
                name=page.name,
                group=page.place.run,
                job_type="model" if page.place.model else "fit",
                config=config,
                resume="allow",
                reinit="finish_previous",
                settings=wandb.Settings(console="off", silent=True),
            )
            run.define_metric("sub_epoch")
            run.define_metric("epoch")
            run.define_metric("sub_epoch/*", step_metric="sub_epoch")
            for prefix in ("epoch", "schedule"):
                run.define_metric(f"{prefix}/*", step_metric="epoch")
            for seq, values in _by_event(rows):
                if seq >= run.step:
                    run.log(values, step=seq)
            run.summary.update(
                {name: text for name, text in page.tags.items() if name != "cerebro.experiment"}
            )
            run.finish(exit_code=_EXIT.get(page.status, 0))
        except (wandb.errors.Error, ValueError) as cause:
            if _DELETED in str(cause):
                raise _DeletedThereError from cause
            is_refused = isinstance(cause, wandb.errors.AuthenticationError) or _REFUSED.search(str(cause))
            if isinstance(cause, wandb.errors.CommError) and not is_refused:
                raise TrackerUnavailableError(f"W&B does not answer: {cause}") from cause
            raise ExportError(
                f"W&B does not take run {page.name}: {cause}. `wandb login`, or WANDB_API_KEY, signs in; "
                "WANDB_MODE=offline writes folders for `wandb sync`"
            ) from cause


def _by_event(rows: Sequence[Row]) -> list[tuple[int, dict[str, float]]]:
    """Values of each event, with the numbers of the sub-epoch and the epoch that they are of, by the event's number."""
    found: dict[int, dict[str, float]] = {}
    for row in rows:
        values = found.setdefault(row.seq, {"_timestamp": row.time})
        values[row.name] = row.value
        values["sub_epoch" if row.name.startswith("sub_epoch/") else "epoch"] = row.step
    return sorted(found.items())


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _package() -> Any:
    try:
        import wandb
    except ImportError as cause:
        raise ExportError(
            "the package wandb is not installed here: pip install 'cerebro-platform[wandb]'"
        ) from cause
    return wandb
