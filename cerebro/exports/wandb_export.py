"""`WandbExport`: writes an experiment's pages to Weights & Biases as runs. `export_loop` calls it.

Only this module imports `wandb`. W&B has no public API for metrics. Its package takes each value with a *step* and
drops values whose step is not above the last one. The step of a value is the number of its event, so a repeated send
has no effect. The run id is the page id, so any machine can continue a run.

Offline (``WANDB_MODE=offline``) the package writes one folder for each call, for `wandb sync`. It cannot know which
values the server has, so each offline call writes all values, with the same steps.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cerebro.errors import ExportError, TrackerUnavailableError
from cerebro.exports.projection import Page, PageKey, Projection, Row

log = logging.getLogger(__name__)

_EXIT = {"finished": 0, "stopped": 0, "failed": 1}
"""Exit codes for W&B's states finished and failed."""
_DELETED = "was previously created and deleted"
"""W&B's error for the id of a deleted run, which it never accepts again (wandb #1192, #4897)."""

_REFUSED = re.compile(r"\b(?:returned error|HTTP) 40[13]\b")
"""The package's error for missing sign-in or permission. Only the status differs from a connection error."""


class _DeletedThereError(Exception):
    """The run was deleted in W&B."""


class WandbExport:
    """Sends the pages of one experiment to W&B; not thread-safe.

    Args:
        project: W&B project; default: the experiment's name.
        entity: W&B user or team; default: the signed-in user.
    """

    def __init__(self, projection: Projection, *, project: str = "", entity: str = "") -> None:
        self._projection = projection
        self._project, self._entity = project or projection.record.name, entity or None
        self._rows: dict[PageKey, list[Row]] = {}
        self._sent: dict[PageKey, tuple[int, str]] = {}
        """Page -> number of the last event sent, and the status it was left with."""
        self._deleted: set[PageKey] = set()
        _package()

    def cursor(self, page_key: PageKey) -> int:
        """Return the number of the last event this process sent; W&B drops repeated rows."""
        return self._sent[page_key][0] if page_key in self._sent else 0

    def send(self, rows: Mapping[PageKey, Sequence[Row]]) -> None:
        """Collect rows until `settle`: starting a W&B run takes seconds, so each starts once."""
        for page_key, some in rows.items():
            self._rows.setdefault(page_key, []).extend(some)

    def settle(self) -> None:
        """Send all collected rows and the status of each page.

        Raises:
            TrackerUnavailableError: W&B does not answer. Calling again is safe.
            ExportError: W&B refuses, for instance without sign-in.
        """
        for page in self._projection.pages():
            if page.key in self._deleted:
                self._rows.pop(page.key, None)
                continue
            rows, known = self._rows.get(page.key, []), self._sent.get(page.key)
            if rows or known is None or known[1] != page.status:
                try:
                    self._write(page, rows)
                except _DeletedThereError:
                    log.warning(
                        "the run %s was deleted in W&B, so its values are not exported. Restore it there to "
                        "continue it with the next export",
                        page.name,
                    )
                    self._deleted.add(page.key)
                self._sent[page.key] = (rows[-1].seq if rows else self.cursor(page.key), page.status)
                self._rows.pop(page.key, None)

    def _write(self, page: Page, rows: Sequence[Row]) -> None:
        wandb = _package()
        config: dict[str, Any] = {name: _value(text) for name, text in page.params.items()}
        try:
            run = wandb.init(
                project=self._project,
                entity=self._entity,
                id=page.id,
                name=page.name,
                group=page.key.run,
                job_type="model" if page.key.model else "fit",
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
    """Group values by event number, with the sub-epoch or epoch they are of."""
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
            "the package wandb is not installed: run pip install 'cerebro-platform[wandb]'"
        ) from cause
    return wandb
