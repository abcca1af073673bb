"""Folders that come with Cerebro besides its code: example scripts, notebooks, the Helm chart, cluster files.

An installation has them in `cerebro/shipped/`, a checkout in its own folders, the notebook image the examples and
notebooks in `IN_IMAGE`. They are read, never written.
"""

from __future__ import annotations

import sys
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


IN_IMAGE = Path(sys.prefix, "share/cerebro")
"""Folder that the Dockerfile fills in the notebook image."""


def is_image() -> bool:
    """True in an image of the Dockerfile, which has neither the wheel's files nor a checkout."""
    return not (_PACKAGE / "shipped").is_dir() and not (_PACKAGE.parent / "pyproject.toml").exists()


def shipped_folder(name: str) -> Path:
    """Return one of the folders in `SOURCES`.

    Raises:
        ClusterError: this installation does not have it, such as an image; the message says who has it.
    """
    for folder in (_PACKAGE / "shipped" / name, _PACKAGE.parent / SOURCES[name], IN_IMAGE / name):
        if folder.is_dir():
            return folder
    if name in ("examples", "notebooks"):
        who = "the image cerebro-notebook has them: run the command in a terminal of JupyterLab"
    else:
        who = "no image has them"
    raise ClusterError(
        f"this image has no {name}; {who}. On your machine, `pip install 'cerebro-platform[local]'` or a checkout has "
        "them, too"
    )
