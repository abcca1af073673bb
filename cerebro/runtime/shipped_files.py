"""Folders that come with Cerebro besides its code: example scripts, notebooks, the Helm chart, cluster files.

An installation has them in `cerebro/shipped/`, a checkout in its own folders. They are read, never written.
"""

from __future__ import annotations

from pathlib import Path

from cerebro.errors import ClusterError

_PACKAGE = Path(__file__).resolve().parents[1]

SOURCES = {
    "chart": "deploy/helm/cerebro",
    "clusters": "infra/eksctl",
    "examples": "examples",
    "notebooks": "notebooks",
}
"""Name of each folder, and its path in a checkout. `setup.py` copies these folders into the wheel."""


def shipped_folder(name: str) -> Path:
    """Return one of the folders in `SOURCES`.

    Raises:
        ClusterError: this installation does not have it, such as an image.
    """
    for folder in (_PACKAGE / "shipped" / name, _PACKAGE.parent / SOURCES[name]):
        if folder.is_dir():
            return folder
    raise ClusterError(
        f"this installation has no {name}: {_PACKAGE / 'shipped'} is missing. Install Cerebro from its wheel, or use a "
        "checkout"
    )
