"""Export the story of `logged` to a fake W&B server on which one run was deleted.

Run it with a Python that has the wandb package: ``python -m tests.exports.wandb_deleted``. It prints the
server's requests
and the log messages. With ``refuses`` the server rejects every user, and the script prints the export's
error.

For the deleted run's id the server responds like W&B (wandb #1192); it accepts all other data.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler
from io import StringIO
from typing import Any

from cerebro.errors import CerebroError
from cerebro.exports.export_loop import ExperimentExport
from cerebro.exports.projection import PageKey, Projection
from cerebro.exports.wandb_export import WandbExport
from tests.exports.logged import LogStore, record, story
from tests.http_server import HttpServer

_DELETED = PageKey("fit-1", "m00")


class Server(BaseHTTPRequestHandler):
    """The part of the W&B API that an export calls."""

    protocol_version = "HTTP/1.1"
    deleted = ""
    refuses = False
    ended: list[str] = []  # noqa: RUF012 - of the one server of this process

    def _do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, answer = 200, dict[str, Any]()
        if self.refuses:
            status, answer = 401, {"errors": [{"message": "user is not logged in"}]}
        elif self.path.endswith("/graphql"):
            request = json.loads(body)
            status, answer = self._asked(request.get("query", ""), request.get("variables") or {})
        elif self.path.endswith("/file_stream") and b'"complete":true' in body.replace(b" ", b""):
            self.ended.append(self.path.split("/")[-2])
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = _do  # noqa: N815 - names that the base class looks for

    def _asked(self, query: str, variables: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name = variables.get("name") or variables.get("run") or ""
        if "upsertBucket" in query:
            if name == self.deleted:
                message = f"run e/p/{name} was previously created and deleted; try a new run id"
                return 409, {"errors": [{"message": message}], "data": {"upsertBucket": None}}
            bucket = {
                "id": name, "name": name, "displayName": name, "description": "", "config": "{}", "sweepName": None,
                "project": {"id": "p", "name": "p", "entity": {"id": "e", "name": "e"}}, "historyLineCount": 0,
            }  # fmt: skip
            return 200, {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}
        if "createRunFiles" in query:
            return 200, {"data": {"createRunFiles": {"runID": name, "uploadHeaders": [], "files": []}}}
        viewer = {"id": "1", "entity": "e", "username": "e", "flags": "{}", "teams": {"edges": []}}
        model = {"id": "p", "name": "p", "entity": {"id": "e", "name": "e"}, "bucket": None}
        return 200, {"data": {"viewer": viewer, "model": model, "serverInfo": {"features": []}}}

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def main() -> None:
    server = HttpServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    os.environ |= {"WANDB_BASE_URL": f"http://127.0.0.1:{server.server_port}", "WANDB_API_KEY": "a" * 40}
    Server.refuses = sys.argv[1:] == ["refuses"]
    Server.deleted = Projection(record()).id_of(_DELETED)
    said = StringIO()
    logging.getLogger("cerebro").addHandler(logging.StreamHandler(said))
    followed = ExperimentExport(
        LogStore(story().log), record(), lambda of: WandbExport(of, project="p", entity="e")
    )
    try:
        followed.catch_up()
    except CerebroError as error:
        said.write(f"{type(error).__name__}: {error}")
    print(json.dumps({"ended": Server.ended, "said": said.getvalue()}), flush=True)  # noqa: T201
    os._exit(0)  # does not wait for the package's service process


if __name__ == "__main__":
    main()
