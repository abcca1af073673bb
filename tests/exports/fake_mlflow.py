"""An in-process fake of MLflow's tracking server with the calls that an export makes.

MLflow's databases drop duplicate rows. This fake keeps them, like MLflow's file store, so tests see
duplicates.
`tracking_contract` runs against both servers.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.http_server import HttpServer

Answer = tuple[int, dict[str, Any]]
_LIMITS = {"metrics": 1000, "params": 100, "tags": 100}


class FakeMlflow:
    """The server's state and API calls; each method is named after its path.

    Attributes:
        fault: may replace the response to a write, from its number, path and True if it was executed.
            Default: no fault.
    """

    def __init__(self) -> None:
        self.experiments: dict[str, dict[str, Any]] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.files: dict[str, bytes] = {}
        self.artifacts = "mlflow-artifacts:/{experiment}/{run}/artifacts"
        self.token = ""
        self.fault: Callable[[int, str, bool], Answer | None] = lambda *_: None
        self.requests = 0
        self._lock = threading.Lock()

    def answer(self, method: str, path: str, query: dict[str, str], body: bytes) -> Answer:
        with self._lock:
            if path.startswith("/api/2.0/mlflow-artifacts/artifacts/"):
                self.files[unquote(path.removeprefix("/api/2.0/mlflow-artifacts/artifacts/"))] = body
                return 200, {}
            call = path.removeprefix("/api/2.0/mlflow/")
            view = getattr(self, f"_{call.replace('/', '_').replace('-', '_')}", None)
            if view is None or not path.startswith("/api/2.0/mlflow/"):
                return 404, {}
            if method == "GET":
                return view(query)  # type: ignore[no-any-return]
            self.requests += 1
            number = self.requests
            if found := self.fault(number, call, False):
                return found
            answer: Answer = view(json.loads(body))
            return self.fault(number, call, True) or answer

    def _experiments_get_by_name(self, query: dict[str, str]) -> Answer:
        for experiment in self.experiments.values():
            if experiment["name"] == query["experiment_name"]:
                return 200, {"experiment": experiment}
        return _refusal(404, "RESOURCE_DOES_NOT_EXIST")

    def _experiments_create(self, body: dict[str, Any]) -> Answer:
        if any(each["name"] == body["name"] for each in self.experiments.values()):
            return _refusal(400, "RESOURCE_ALREADY_EXISTS")
        number = str(len(self.experiments) + 1)
        self.experiments[number] = {
            "experiment_id": number,
            "name": body["name"],
            "lifecycle_stage": "active",
        }
        return 200, {"experiment_id": number}

    def _runs_create(self, body: dict[str, Any]) -> Answer:
        run, experiment = uuid.uuid4().hex, body["experiment_id"]
        info = {
            "run_id": run,
            "run_name": body["run_name"],
            "status": "RUNNING",
            "start_time": body["start_time"],
            "experiment_id": experiment,
            "lifecycle_stage": "active",
            "artifact_uri": self.artifacts.format(experiment=experiment, run=run),
        }
        tags = {tag["key"]: tag["value"] for tag in body["tags"]} | {"mlflow.runName": body["run_name"]}
        self.runs[run] = {"info": info, "tags": tags, "params": {}, "rows": []}
        return 200, {"run": _run_fields(self.runs[run])}

    def _runs_search(self, body: dict[str, Any]) -> Answer:
        name, _, value = body["filter"].removeprefix("tags.").partition(" = ")
        found = [run for run in self.runs.values() if run["tags"].get(name.strip("`")) == value.strip("'")]
        begin = int(body.get("page_token", 0))
        end = begin + min(body["max_results"], 2)  # pages of two rows, so that tests read several
        answer: dict[str, Any] = {"runs": [_run_fields(run) for run in found[begin:end]]}
        return 200, answer | ({"next_page_token": str(end)} if end < len(found) else {})

    def _runs_update(self, body: dict[str, Any]) -> Answer:
        values = {name: body[name] for name in ("status", "end_time") if name in body}
        self.runs[body["run_id"]]["info"] |= values
        return 200, {}

    def _runs_delete(self, body: dict[str, Any]) -> Answer:
        self.runs[body["run_id"]]["info"]["lifecycle_stage"] = "deleted"
        return 200, {}

    def _runs_log_batch(self, body: dict[str, Any]) -> Answer:
        run = self.runs[body["run_id"]]
        for kind, most in _LIMITS.items():
            if len(body.get(kind, ())) > most:
                return _refusal(400, "INVALID_PARAMETER_VALUE")
        if run["info"]["lifecycle_stage"] == "deleted":
            return _refusal(400, "INVALID_PARAMETER_VALUE")
        for param in body.get("params", ()):
            if run["params"].setdefault(param["key"], param["value"]) != param["value"]:
                return _refusal(400, "INVALID_PARAMETER_VALUE")
        for metric in body.get("metrics", ()):
            run["rows"].append(metric)
            if (found := self.fault(self.requests, "a row", True)) is not None:
                return found
        run["tags"] |= {tag["key"]: tag["value"] for tag in body.get("tags", ())}
        return 200, {}

    def _metrics_get_history(self, query: dict[str, str]) -> Answer:
        rows = [row for row in self.runs[query["run_id"]]["rows"] if row["key"] == query["metric_key"]]
        begin = int(query.get("page_token", 0))
        answer: dict[str, Any] = {"metrics": rows[begin : begin + 3]}
        return 200, answer | ({"next_page_token": str(begin + 3)} if begin + 3 < len(rows) else {})


def _run_fields(run: dict[str, Any]) -> dict[str, Any]:
    pairs = {
        kind: [{"key": key, "value": value} for key, value in run[kind].items()]
        for kind in ("tags", "params")
    }
    return {"info": run["info"], "data": pairs}


def _refusal(status: int, code: str) -> Answer:
    return status, {"error_code": code, "message": f"refused: {code}"}


@contextmanager
def serving(fake: FakeMlflow) -> Iterator[str]:
    """Serve the fake and yield its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            if fake.token and self.headers.get("Authorization") != f"Bearer {fake.token}":
                status, found = 401, dict[str, Any]()
            else:
                status, found = fake.answer(self.command, parts.path, query, body)
            content = json.dumps(found).encode()
            self.send_response(status)
            if retry := found.get("retry_after"):
                self.send_header("Retry-After", retry)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = _do  # noqa: N815 - names that the base class looks for

        def log_message(self, *_: object) -> None:
            pass

    Handler.wbufsize = (
        -1
    )  # one packet per response; a second one would wait for the first one's acknowledgement
    server = HttpServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
