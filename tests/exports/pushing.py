"""A process that pushes a registered model of three versions to an MLflow server.

``python -m tests.exports.pushing NAME URL FILE``. It says how many of its requests were answered, so that whoever kills
it knows where it is.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cerebro.exports.mlflow_registry import RegistryExport
from tests.exports.exporting import Telling
from tests.exports.registry_contract import model


def main(name: str, url: str, file: str) -> None:
    RegistryExport(Telling(url, {}), lambda _: Path(file)).push([model(name, 1, 2, 3, champion=3, old=1)])


if __name__ == "__main__":
    main(*sys.argv[1:])
