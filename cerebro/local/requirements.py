"""Python packages of a local cluster: check that they are installed before its services start.

Nothing is imported or installed. Each service imports its own packages.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable

from cerebro.errors import ClusterError

INSTALL = f"{sys.executable} -m pip install 'cerebro-platform[local]'"
"""Command that installs all packages of a local cluster."""

SERVICES = ("cerebro.worker.agent", "controller", "dispatcher", "etl_worker", "kvs_api", "model_hopper")
PACKAGES = (
    "pydantic", "urllib3", "flask", "starlette", "uvicorn", "redis", "numpy", "pyarrow", "tensorboard", "google_crc32c",
    "torch", "xxhash", "cloudpickle", "pandas", "tqdm", "plotly",
)  # fmt: skip


def missing(also: Iterable[str] = ()) -> list[str]:
    """List the modules in `SERVICES`, `PACKAGES` and `also` that are not installed."""
    return [name for name in (*SERVICES, *PACKAGES, *also) if importlib.util.find_spec(name) is None]


def require(also: Iterable[str] = ()) -> None:
    """Check that all packages of a local cluster are installed.

    Args:
        also: further modules that the caller needs.

    Raises:
        ClusterError: a package is missing; the message has the command that installs it.
    """
    if not (absent := missing(also)):
        return
    advice = ""
    if "torch" in absent:
        advice = (
            ". On a machine without a GPU, first install a CPU build of torch (PyTorch's installation page has the "
            "command); otherwise pip may download gigabytes of CUDA libraries"
        )
    raise ClusterError(
        f"a local cluster needs packages that are not installed: {', '.join(absent)}. Install them: {INSTALL}{advice}"
    )
