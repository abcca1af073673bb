"""The supervisor over services that do nothing: ``python fake_supervisor.py SERVICES.json OPTIONS...``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from cerebro.local.__main__ import main
from cerebro.local.home import ClusterHome
from cerebro.local.supervision.processes import MARKER
from cerebro.local.supervision.services import Service, ServiceOptions


def build(
    options: ServiceOptions,
    home: ClusterHome,
    ports: Mapping[str, int],
    socket: Path,
    inherited: Mapping[str, str],
) -> Sequence[Service]:
    """Build the services listed in the JSON file, each with its Python program and options."""
    return [
        Service(
            name=fake["name"],
            command=(sys.executable, "-I", "-S", "-c", fake["program"]),
            environment={
                "PATH": os.defpath,
                "FAKE_HOME": str(home.path),
                "FAKE_LINKS": " ".join(options.listening),
                MARKER: str(home.path),
            },
            stage=fake["stage"],
            ready=partial(bool, fake["ready"]),
            required=fake["required"],
            renewed=fake["renewed"],
        )
        for fake in json.loads(Path(sys.argv[1]).read_text())
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], build=build, grace_s=float(os.environ.get("FAKE_GRACE_S", "5"))))
