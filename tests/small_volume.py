"""A volume so small that a test can fill it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_volume(folder: Path, size: str) -> Iterator[Path]:
    """Mount a file system of this size (``4m``) at a folder; needs the right to mount."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if (
        shutil.which("mount") is None
        or subprocess.run(command, capture_output=True, check=False).returncode != 0
    ):
        pytest.skip("mounting a small volume takes rights that this user has not")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(volume: Path) -> Path:
    """Fill a volume; return the file that uses the space."""
    filler = volume / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(volume).free)
    return filler
