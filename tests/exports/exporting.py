"""A process that exports a log from a file to an MLflow server: ``python -m tests.exports.exporting LOG NAME URL``. It
says how many of its requests were answered, so that whoever kills it knows where it is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from cerebro.exports.export_loop import ExperimentExport
from cerebro.exports.mlflow_export import MlflowExport
from cerebro.exports.mlflow_server import MlflowServer
from tests.exports.logged import LogStore, read_log, record


class Telling(MlflowServer):
    def _request(self, *given: Any, **more: Any) -> bytes:
        sys.stdout.write("+")
        sys.stdout.flush()
        return super()._request(*given, **more)


def main(log: str, name: str, url: str) -> None:
    of, server = record(name), Telling(url, {})
    store = LogStore(read_log(Path(log)), of, page=20)
    ExperimentExport(store, of, lambda projection: MlflowExport(server, projection)).catch_up()


if __name__ == "__main__":
    main(*sys.argv[1:])
