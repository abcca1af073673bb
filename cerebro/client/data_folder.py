"""`cerebro.data_folder`: a folder for data files that both this process and the workers can read.

Users call it in notebooks and examples. It creates and checks nothing; a remote cluster cannot read the folder.
"""

from __future__ import annotations

import os
from pathlib import Path

from cerebro.local.home import ClusterHome
from cerebro.runtime.volumes import Volumes


def data_folder(name: str) -> Path:
    """Return a folder for data files, with the same path here and on the workers.

    Inside a cluster with a writable shared volume it is on that volume, otherwise in the folder of the local cluster.
    The folder is not created.

    Args:
        name: relative path, such as ``"examples/digits"``.

    Example::

        folder = data_folder("digits")
        folder.mkdir(parents=True, exist_ok=True)
    """
    shared = Volumes.from_environment(os.environ).shared
    is_inside = bool(os.environ.get("CEREBRO_SERVER")) and os.access(shared, os.W_OK)
    return (shared if is_inside else ClusterHome().path) / name
