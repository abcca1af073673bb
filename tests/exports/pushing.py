"""Push a registered model with three versions: ``python -m tests.exports.pushing NAME URL FILE``.

The process prints a byte for each answered request, so that a test can kill it at a known point.
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
