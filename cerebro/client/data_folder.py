"""Where to put data so that the cluster's workers see them, too."""

from __future__ import annotations

import os
from pathlib import Path

from cerebro.local.home import ClusterHome
from cerebro.runtime.volumes import Volumes


def data_folder(name: str) -> Path:
    """A folder for files that locators are to name: this process and the workers see it under the same path.

    In a cluster it is on the shared volume, if that is mounted here and may be written to; else beside the local
    cluster. Nothing is made.

    Args:
        name: of the folder there, such as ``examples/digits``.
    """
    shared = Volumes.from_environment(os.environ).shared
    is_inside = bool(os.environ.get("CEREBRO_SERVER")) and os.access(shared, os.W_OK)
    return (shared if is_inside else ClusterHome().path) / name
