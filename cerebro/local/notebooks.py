"""JupyterLab of a local cluster: check that it is installed, and copy Cerebro's notebooks into the home.

The supervisor starts JupyterLab (`services`). On Kubernetes, the image contains the notebooks instead.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

from cerebro.errors import ClusterError
from cerebro.runtime.shipped_files import shipped_folder


def is_installed() -> bool:
    """True if this Python can run JupyterLab. Does not import it."""
    return importlib.util.find_spec("jupyterlab") is not None


def require() -> None:
    """Check that JupyterLab can be run.

    Raises:
        ClusterError: it is not installed.
    """
    if not is_installed():
        raise ClusterError(
            f"JupyterLab is not installed for {sys.executable}: pip install 'cerebro-platform[notebook]', or `make "
            "notebook` in a checkout"
        )


def place(folder: Path) -> None:
    """Copy Cerebro's notebooks into `folder`. Existing files keep the user's changes.

    A notebook writes data into its folder, so the installed files are never opened.
    """
    folder.mkdir(exist_ok=True, mode=0o700)
    for source in sorted(shipped_folder("notebooks").glob("*.ipynb")):
        target = folder / source.name
        if not target.exists():
            shutil.copyfile(source, target)
