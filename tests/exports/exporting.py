"""Export a log file to MLflow: ``python -m tests.exports.exporting LOG NAME URL``.

The process prints a byte for each answered request, so that a test can kill it at a known point.
"""

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
