"""An experiment's pages as runs of MLflow: each row once, whatever ends the export or a request in its middle.

A page is a run with the tag `ID`, made with it in one request, so it is found again. The tag `CURSOR` says up to which
event a run has its rows; it is set in the request that brings them. MLflow may have done a part of a request that was
not answered: then the history of its metrics is read first, and only what is not there is sent. Times are the log's,
so a store that knows no two equal rows, as MLflow's databases do, would not even take them twice.

One export at a time for an experiment: of two, both may make a run for the same page.
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

from cerebro.contract.tasks import CheckpointRef
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
from cerebro.exports.projection import Page, Place, Projection, Row

log = logging.getLogger(__name__)

ID, CURSOR, CHECKPOINT = "cerebro.id", "cerebro.seq", "cerebro.checkpoint"
_STATUS = {"running": "RUNNING", "finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
_PROXIED = "mlflow-artifacts:"
_PAGE = 1000


@dataclass
class _Known:
    """A run of MLflow, as far as it is known here."""

    run_id: str
    status: str
    artifacts: str
    cursor: int = 0
    tags: dict[str, str] = field(default_factory=dict)
    params: set[str] = field(default_factory=set)
    is_deleted: bool = False
    is_certain: bool = False
    """Whether it has no row behind its cursor."""


class MlflowExport:
    """Sends what a projection of one experiment shows; not thread-safe.

    Args:
        checkpoint: where a checkpoint is as one file; `None`: none is sent.
    """

    def __init__(
        self,
        server: MlflowServer,
        projection: Projection,
        checkpoint: Callable[[CheckpointRef], Path] | None = None,
    ) -> None:
        self._server, self._projection, self._checkpoint = server, projection, checkpoint
        self._experiment = ""
        self._known: dict[str, _Known] = {}
        self._not_sent: set[str] = set()
        """Checkpoints that cannot be had: told once."""

    # --- what is there ---------------------------------------------------------------------------

    def cursor(self, place: Place) -> int:
        """Up to which event a page has its rows."""
        self._find()
        known = self._known.get(self._projection.id_of(place))
        return known.cursor if known else 0

    def _find(self) -> None:
        """Look once at what earlier exports have left."""
        if self._experiment:
            return
        name = self._projection.record.name
        experiment = self._server.patiently(lambda again: made_experiment(self._server, name, again))
        for known, of in self._search(
            experiment, f"tags.`cerebro.experiment` = '{self._projection.identity}'"
        ):
            if of in self._known:
                log.warning(
                    "MLflow has two runs for one page, %s and %s: the first is used", of, known.run_id
                )
                continue
            self._known[of] = known
        self._experiment = experiment

    def _search(self, experiment: str, filter_string: str) -> Iterator[tuple[_Known, str]]:
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
                known = _known(run)
                if ID in known.tags:
                    yield known, known.tags[ID]
            page = answer.get("next_page_token", "")
            if not page:
                return

    # --- what is sent ----------------------------------------------------------------------------

    def send(self, rows: Mapping[Place, Sequence[Row]]) -> None:
        """Add rows to pages, each page's in the order of the log and complete up to its last one's event.

        Raises:
            TrackerUnavailableError, ExportError: not all were taken. To send the same again is safe.
        """
        self._find()
        for place in sorted(rows):  # a fit before its models
            known = self._made(self._projection.page(place))
            if not known.is_deleted:
                self._add(known, [row for row in rows[place] if row.seq > known.cursor])

    def settle(self) -> None:
        """Have each page say how it stands now. To be called where the log ends. Raises as `send`."""
        self._find()
        for page in self._projection.pages():
            known = self._made(page)
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

    def _made(self, page: Page) -> _Known:
        """The run of a page, made if it is not there yet, with all its parameters."""
        known = self._known.get(page.id)
        if known is None:
            if page.place.model:
                self._made(self._projection.page(Place(page.place.run)))
            known = self._known[page.id] = self._server.patiently(lambda again: self._create(page, again))
        missing = {
            name: value[:MAX_PARAM]
            for name, value in ((_name(name), value) for name, value in page.params.items())
            if name not in known.params
        }
        if missing and not known.is_deleted:
            for some in _slices(pairs(missing), MAX_PARAMS):
                self._server.post("runs/log-batch", run_id=known.run_id, params=some)
            known.params |= missing.keys()
        return known

    def _create(self, page: Page, again: bool) -> _Known:
        if again:
            found = [known for known, of in self._search(self._experiment, f"tags.`{ID}` = '{page.id}'")]
            if found:
                return found[0]
        tags = {**page.tags, ID: page.id, "mlflow.source.name": "cerebro", "mlflow.user": page.author}
        if page.place.model:
            parent = self._projection.id_of(Place(page.place.run))
            tags["mlflow.parentRunId"] = self._known[parent].run_id
        body = {
            "experiment_id": self._experiment,
            "run_name": page.name,
            "start_time": _ms(page.started),
            "tags": pairs({name: value[:MAX_TAG] for name, value in tags.items()}),
        }
        known = _known(self._server.call("POST", "runs/create", body)["run"])
        known.is_certain = not again
        return known

    def _add(self, known: _Known, rows: Sequence[Row]) -> None:
        metrics = [(_metric(row), row.seq) for row in rows]
        for some in _slices(metrics, MAX_METRICS):
            last = some[-1][1]
            # An event's rows may go on in the next request.
            cursor = last if some[-1] is metrics[-1] else last - 1
            self._server.patiently(partial(self._batch, known, some, cursor))

    def _batch(
        self, known: _Known, metrics: Sequence[tuple[dict[str, Any], int]], cursor: int, _again: bool
    ) -> None:
        sent = [metric for metric, _ in metrics]
        if not known.is_certain:
            there = self._there(known.run_id, {metric["key"] for metric in sent})
            sent = [
                metric for metric in sent if (metric["key"], metric["step"], metric["timestamp"]) not in there
            ]
        known.is_certain = False
        cursor = max(cursor, known.cursor)
        body = {"run_id": known.run_id, "metrics": sent, "tags": pairs({CURSOR: str(cursor)})}
        self._server.call("POST", "runs/log-batch", body)
        known.is_certain, known.cursor = True, cursor

    def _there(self, run_id: str, names: Iterable[str]) -> set[tuple[str, int, int]]:
        """(name, step, time in ms) of what a run has."""
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

    def _send_checkpoint(self, known: _Known, page: Page) -> None:
        reference = page.checkpoint
        if self._checkpoint is None or reference is None or known.tags.get(CHECKPOINT) == reference.name:
            return
        if not known.artifacts.startswith(_PROXIED):
            raise ExportError(
                f"MLflow at {self._server.address} does not take files itself: it keeps those of this run at "
                f"{known.artifacts}. Start it with --serve-artifacts, or export without --checkpoints"
            )
        if reference.name in self._not_sent:
            return
        try:
            file = self._checkpoint(reference)
        except CerebroError as error:
            log.warning("the checkpoint of %s is left out: %s", page.name, error)
            self._not_sent.add(reference.name)
            return
        root = known.artifacts.removeprefix(_PROXIED).lstrip("/")
        self._server.upload(f"{root}/checkpoint/{reference.name.rsplit('/', 1)[-1]}", file)
        told = pairs({CHECKPOINT: reference.name, f"{CHECKPOINT}.checksum": reference.checksum})
        self._server.post("runs/log-batch", run_id=known.run_id, tags=told)
        known.tags[CHECKPOINT] = reference.name


def made_experiment(server: MlflowServer, name: str, again: bool) -> str:
    """Id of the experiment of this name, made if there is none; to be called `patiently`.

    Raises:
        ExportError: it was deleted there.
    """
    try:
        found = server.call("GET", f"experiments/get-by-name?experiment_name={name}")["experiment"]
    except ExportError as error:
        if error.code != "RESOURCE_DOES_NOT_EXIST":
            raise
        try:
            return str(server.call("POST", "experiments/create", {"name": name})["experiment_id"])
        except ExportError as taken:
            if taken.code != "RESOURCE_ALREADY_EXISTS" or again:
                raise
        return made_experiment(server, name, True)
    if found.get("lifecycle_stage") == "deleted":
        raise ExportError(
            f"the experiment {name!r} was deleted in MLflow: restore it (`mlflow experiments restore "
            f"--experiment-id {found['experiment_id']}`), or remove it there for good (`mlflow gc`)"
        )
    return str(found["experiment_id"])


def _known(run: Mapping[str, Any]) -> _Known:
    info, data = run["info"], run.get("data", {})
    tags = {tag["key"]: tag.get("value", "") for tag in data.get("tags", ())}
    cursor = tags.get(CURSOR, "0")
    return _Known(
        run_id=info["run_id"],
        status=info.get("status", "RUNNING"),
        artifacts=info.get("artifact_uri", ""),
        cursor=int(cursor) if cursor.isdecimal() else 0,
        tags=tags,
        params={param["key"] for param in data.get("params", ())},
        is_deleted=info.get("lifecycle_stage") == "deleted",
    )


def _metric(row: Row) -> dict[str, Any]:
    # JSON knows neither NaN nor infinity; MLflow reads protocol buffers, which know them as texts.
    value: float | str = row.value
    if math.isnan(row.value):
        value = "NaN"
    elif math.isinf(row.value):
        value = "Infinity" if row.value > 0 else "-Infinity"
    return {"key": _name(row.name), "value": value, "timestamp": _ms(row.time), "step": row.step}


def _name(text: str) -> str:
    """A name that MLflow takes: another one for each text. It is the text where that is possible."""
    parts = re.sub(r"[^\w.\- /]", "_", text, flags=re.ASCII)
    is_path = all(part.strip() and part.strip(".") for part in parts.split("/"))
    if parts == text and is_path and len(text) <= MAX_NAME:
        return text
    if not is_path:
        parts = parts.replace("/", "_")
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    return f"{parts[: MAX_NAME - 11]}-{digest}"


def pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    """Key-value pairs as MLflow's routes take them."""
    return [{"key": name, "value": value} for name, value in values.items()]


def _slices(items: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    """In requests that are neither too long nor too large."""
    begin, size = 0, 0
    for position, item in enumerate(items):
        num_bytes = len(json.dumps(item, ensure_ascii=False).encode()) + 2
        if position > begin and (position - begin == most or size + num_bytes > MAX_REQUEST_BYTES):
            yield items[begin:position]
            begin, size = position, 0
        size += num_bytes
    if begin < len(items):
        yield items[begin:]


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
