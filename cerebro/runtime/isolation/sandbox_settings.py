"""The two environment variables of the sandbox, ``CEREBRO_SANDBOX`` and ``CEREBRO_SANDBOX_WRITABLE``.

Workers and `cerebro doctor` read them; `numeric_settings.check` validates them for `cerebro up`. The sandbox itself is
`cerebro.worker.child.sandbox`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cerebro.errors import ClusterError

MODE, WRITABLE = "CEREBRO_SANDBOX", "CEREBRO_SANDBOX_WRITABLE"


def mode(environment: Mapping[str, str]) -> bool:
    """True if the sandbox is on.

    Raises:
        ClusterError: the value is neither on nor off.
    """
    said = environment.get(MODE, "") or "off"
    if said not in ("off", "on"):
        raise ClusterError(f"{MODE} is {said!r}, expected off or on (worker.sandbox of the chart)")
    return said == "on"


def writable(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return further folders that all user code may write to.

    Raises:
        ClusterError: a path is not absolute.
    """
    paths = tuple(Path(text) for text in environment.get(WRITABLE, "").split(os.pathsep) if text)
    for path in paths:
        if not path.is_absolute():
            raise ClusterError(
                f"{WRITABLE} has {str(path)!r}, expected absolute paths with {os.pathsep!r} between them "
                "(worker.sandboxWritable of the chart)"
            )
    return paths
