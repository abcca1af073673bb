"""`MlflowExport`: writes an experiment's pages to MLflow as runs, each row once. `export_loop` calls it.

A run is created in one request with its tag `ID`, so a later export finds it. The tag `CURSOR` holds the number of the
last event whose rows the run has; the request that sends rows also sets it. MLflow may have applied part of a request
whose answer was lost. Before a retry, the export therefore reads the run's metric history and sends only missing rows.
Times are the log's, so MLflow's databases, which store equal rows once, would also drop a row that was sent twice.

Run one export of an experiment at a time: two could create two runs for the same page.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.errors import CerebroError, ExportError
from cerebro.exports.mlflow_server import (
    MAX_METRICS,
    MAX_NAME,
    MAX_PARAM,
    MAX_PARAMS,
    MAX_REQUEST_BYTES,
    MAX_TAG,
    MlflowServer,
)
from cerebro.exports.projection import Page, PageKey, Projection, Row

log = logging.getLogger(__name__)

ID, CURSOR, CHECKPOINT = "cerebro.id", "cerebro.seq", "cerebro.checkpoint"
_STATUS = {"running": "RUNNING", "finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
_PROXIED = "mlflow-artifacts:"
_PAGE = 1000


@dataclass
class _RunInfo:
    """Known state of an MLflow run."""

    run_id: str
    status: str
    artifacts: str
    cursor: int = 0
    tags: dict[str, str] = field(default_factory=dict)
    params: set[str] = field(default_factory=set)
    is_deleted: bool = False
    is_certain: bool = False
    """True if the run has no rows after its cursor."""


class MlflowExport:
    """Sends the pages of one experiment to MLflow; not thread-safe.

    Args:
        checkpoint: returns the file of a checkpoint; `None` sends no files.
    """

    def __init__(
        self,
        server: MlflowServer,
        projection: Projection,
        checkpoint: Callable[[CheckpointRef], Path] | None = None,
    ) -> None:
        self._server, self._projection, self._checkpoint = server, projection, checkpoint
        self._experiment = ""
        self._known: dict[str, _RunInfo] = {}
        self._unavailable: set[str] = set()
        """Unavailable checkpoints, to warn once for each."""

    # --- runs of earlier exports -----------------------------------------------------------------

    def cursor(self, page_key: PageKey) -> int:
        """Return the number of the last event whose rows the page has."""
        self._find()
        known = self._known.get(self._projection.id_of(page_key))
        return known.cursor if known else 0

    def _find(self) -> None:
        if self._experiment:
            return
        name = self._projection.record.name
        experiment = self._server.retry(
            lambda is_retry: get_or_create_experiment(self._server, name, is_retry)
        )
        for known, page_id in self._search(
            experiment, f"tags.`cerebro.experiment` = '{self._projection.identity}'"
        ):
            if page_id in self._known:
                log.warning(
                    "MLflow has two runs for one page, %s and %s: the first is used", page_id, known.run_id
                )
                continue
            self._known[page_id] = known
        self._experiment = experiment

    def _search(self, experiment: str, filter_string: str) -> Iterator[tuple[_RunInfo, str]]:
        page = ""
        while True:
            body = {
                "experiment_ids": [experiment],
                "filter": filter_string,
                "max_results": _PAGE,
                "run_view_type": "ALL",
                "order_by": ["attributes.start_time ASC", "attributes.run_id ASC"],
            }
            answer = self._server.post("runs/search", **body, **({"page_token": page} if page else {}))
            for run in answer.get("runs", ()):
                known = _run_info(run)
                if ID in known.tags:
                    yield known, known.tags[ID]
            page = answer.get("next_page_token", "")
            if not page:
                return

    # --- requests --------------------------------------------------------------------------------

    def send(self, rows: Mapping[PageKey, Sequence[Row]]) -> None:
        """Add rows to pages, in log order.

        The rows of a page must be complete up to the event of its last row.

        Raises:
            TrackerUnavailableError, ExportError: some rows were not accepted. Sending the same rows again is safe.
        """
        self._find()
        for page_key in sorted(rows):  # A fit before its models.
            known = self._get_or_create(self._projection.page(page_key))
            if not known.is_deleted:
                self._add(known, [row for row in rows[page_key] if row.seq > known.cursor])

    def settle(self) -> None:
        """Update the tags, checkpoint and status of each page, after all rows were sent.

        Raises:
            TrackerUnavailableError, ExportError: some updates were not accepted. Calling again is safe.
        """
        self._find()
        for page in self._projection.pages():
            known = self._get_or_create(page)
            if known.is_deleted:
                continue
            tags = {
                name: value[:MAX_TAG]
                for name, value in page.tags.items()
                if known.tags.get(name) != value[:MAX_TAG]
            }
            if tags:
                body = {"run_id": known.run_id, "tags": pairs(tags)}
                self._server.post("runs/log-batch", **body)
                known.tags |= tags
            self._send_checkpoint(known, page)
            if known.status != _STATUS[page.status]:
                ended = {"end_time": _ms(page.ended)} if page.ended else {}
                self._server.post("runs/update", run_id=known.run_id, status=_STATUS[page.status], **ended)
                known.status = _STATUS[page.status]

    def _get_or_create(self, page: Page) -> _RunInfo:
        """Return the run of a page with all parameters; create it if missing."""
        known = self._known.get(page.id)
        if known is None:
            if page.key.model:
                self._get_or_create(self._projection.page(PageKey(page.key.run)))
            known = self._known[page.id] = self._server.retry(lambda is_retry: self._create(page, is_retry))
        missing = {
            name: value[:MAX_PARAM]
            for name, value in ((_name(name), value) for name, value in page.params.items())
            if name not in known.params
        }
        if missing and not known.is_deleted:
            for batch in _slices(pairs(missing), MAX_PARAMS):
                self._server.post("runs/log-batch", run_id=known.run_id, params=batch)
            known.params |= missing.keys()
        return known

    def _create(self, page: Page, is_retry: bool) -> _RunInfo:
        if is_retry:
            found = [known for known, page_id in self._search(self._experiment, f"tags.`{ID}` = '{page.id}'")]
            if found:
                return found[0]
        tags = {**page.tags, ID: page.id, "mlflow.source.name": "cerebro", "mlflow.user": page.author}
        if page.key.model:
            parent = self._projection.id_of(PageKey(page.key.run))
            tags["mlflow.parentRunId"] = self._known[parent].run_id
        body = {
            "experiment_id": self._experiment,
            "run_name": page.name,
            "start_time": _ms(page.started),
            "tags": pairs({name: value[:MAX_TAG] for name, value in tags.items()}),
        }
        known = _run_info(self._server.call("POST", "runs/create", body)["run"])
        known.is_certain = not is_retry
        return known

    def _add(self, known: _RunInfo, rows: Sequence[Row]) -> None:
        metrics = [(_metric(row), row.seq) for row in rows]
        for batch in _slices(metrics, MAX_METRICS):
            last = batch[-1][1]
            # The remaining rows of an event can be in the next request.
            cursor = last if batch[-1] is metrics[-1] else last - 1
            self._server.retry(partial(self._batch, known, batch, cursor))

    def _batch(
        self, known: _RunInfo, metrics: Sequence[tuple[dict[str, Any], int]], cursor: int, _is_retry: bool
    ) -> None:
        sent = [metric for metric, _ in metrics]
        if not known.is_certain:
            present = self._present_rows(known.run_id, {metric["key"] for metric in sent})
            sent = [
                metric
                for metric in sent
                if (metric["key"], metric["step"], metric["timestamp"]) not in present
            ]
        known.is_certain = False
        cursor = max(cursor, known.cursor)
        body = {"run_id": known.run_id, "metrics": sent, "tags": pairs({CURSOR: str(cursor)})}
        self._server.call("POST", "runs/log-batch", body)
        known.is_certain, known.cursor = True, cursor

    def _present_rows(self, run_id: str, names: Iterable[str]) -> set[tuple[str, int, int]]:
        """Return (name, step, time in ms) of the rows a run has."""
        found, page = set(), ""
        for name in sorted(names):
            while True:
                answer = self._server.get(
                    "metrics/get-history",
                    run_id=run_id,
                    metric_key=name,
                    **({"page_token": page} if page else {}),
                )
                found |= {
                    (name, int(m.get("step", 0)), int(m["timestamp"])) for m in answer.get("metrics", ())
                }
                page = answer.get("next_page_token", "")
                if not page:
                    break
        return found

    def _send_checkpoint(self, known: _RunInfo, page: Page) -> None:
        reference = page.checkpoint
        if self._checkpoint is None or reference is None or known.tags.get(CHECKPOINT) == reference.name:
            return
        if not known.artifacts.startswith(_PROXIED):
            raise ExportError(
                f"MLflow at {self._server.address} does not take files itself: it keeps the files of this run at "
                f"{known.artifacts}. Start it with --serve-artifacts, or export without --checkpoints"
            )
        if reference.name in self._unavailable:
            return
        try:
            file = self._checkpoint(reference)
        except CerebroError as error:
            log.warning("the checkpoint of %s was not exported: %s", page.name, error)
            self._unavailable.add(reference.name)
            return
        root = known.artifacts.removeprefix(_PROXIED).lstrip("/")
        self._server.upload(f"{root}/checkpoint/{reference.name.rsplit('/', 1)[-1]}", file)
        tags = pairs({CHECKPOINT: reference.name, f"{CHECKPOINT}.checksum": reference.checksum})
        self._server.post("runs/log-batch", run_id=known.run_id, tags=tags)
        known.tags[CHECKPOINT] = reference.name


def get_or_create_experiment(server: MlflowServer, name: str, is_retry: bool) -> str:
    """Return the id of the MLflow experiment `name`; create it if missing. Call it with `retry`.

    Args:
        is_retry: True if an earlier try may have created it.

    Raises:
        ExportError: the experiment was deleted in MLflow.
    """
    try:
        found = server.call("GET", f"experiments/get-by-name?experiment_name={name}")["experiment"]
    except ExportError as error:
        if error.code != "RESOURCE_DOES_NOT_EXIST":
            raise
        try:
            return str(server.call("POST", "experiments/create", {"name": name})["experiment_id"])
        except ExportError as taken:
            if taken.code != "RESOURCE_ALREADY_EXISTS" or is_retry:
                raise
        return get_or_create_experiment(server, name, True)
    if found.get("lifecycle_stage") == "deleted":
        raise ExportError(
            f"the experiment {name!r} was deleted in MLflow: restore it (`mlflow experiments restore "
            f"--experiment-id {found['experiment_id']}`), or remove it there for good (`mlflow gc`)"
        )
    return str(found["experiment_id"])


def _run_info(run: Mapping[str, Any]) -> _RunInfo:
    info, data = run["info"], run.get("data", {})
    tags = {tag["key"]: tag.get("value", "") for tag in data.get("tags", ())}
    cursor = tags.get(CURSOR, "0")
    return _RunInfo(
        run_id=info["run_id"],
        status=info.get("status", "RUNNING"),
        artifacts=info.get("artifact_uri", ""),
        cursor=int(cursor) if cursor.isdecimal() else 0,
        tags=tags,
        params={param["key"] for param in data.get("params", ())},
        is_deleted=info.get("lifecycle_stage") == "deleted",
    )


def _metric(row: Row) -> dict[str, Any]:
    # JSON has no NaN or infinity; MLflow accepts them as the strings of protocol buffers.
    value: float | str = row.value
    if math.isnan(row.value):
        value = "NaN"
    elif math.isinf(row.value):
        value = "Infinity" if row.value > 0 else "-Infinity"
    return {"key": _name(row.name), "value": value, "timestamp": _ms(row.time), "step": row.step}


def _name(text: str) -> str:
    """Return a name that MLflow accepts, unique for each text; the text itself if possible."""
    parts = re.sub(r"[^\w.\- /]", "_", text, flags=re.ASCII)
    is_path = all(part.strip() and part.strip(".") for part in parts.split("/"))
    if parts == text and is_path and len(text) <= MAX_NAME:
        return text
    if not is_path:
        parts = parts.replace("/", "_")
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    return f"{parts[: MAX_NAME - 11]}-{digest}"


def pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    """Convert to the key-value pairs of MLflow's REST API."""
    return [{"key": name, "value": value} for name, value in values.items()]


def _slices(items: Sequence[Any], max_items: int) -> Iterator[Sequence[Any]]:
    """Split into requests within MLflow's limits of number and size."""
    begin, size = 0, 0
    for position, item in enumerate(items):
        num_bytes = len(json.dumps(item, ensure_ascii=False).encode()) + 2
        if position > begin and (position - begin == max_items or size + num_bytes > MAX_REQUEST_BYTES):
            yield items[begin:position]
            begin, size = position, 0
        size += num_bytes
    if begin < len(items):
        yield items[begin:]


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
