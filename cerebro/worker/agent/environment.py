"""User files and their Python environment, created once per machine.

`execution` calls it before it starts a child, and `cerebro.client.replay` on the user's machine. It downloads a code
archive from the store, and writes files and environments to the `code` volume. It never removes complete ones.

A `requirements.txt` among the uploaded files gets a virtual environment with the worker's packages behind its own.
Packages the worker has, such as torch, are not installed again, and user packages cannot break the worker. An
installation has 30 minutes.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cerebro.errors import RequirementsError
from cerebro.runtime.isolation.parent_death import with_parent_death_signal
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.volume_errors import FULL, volume_errors_named
from cerebro.runtime.volumes import Volumes
from cerebro.usercode.archive import extract

_TAIL = 4000
_LIMIT_S = 1800.0
"""Maximum seconds of an installation. No task starts on the worker during it."""
_HELD = ("torch", "numpy", "pyarrow", "pydantic")
"""Packages that the child itself uses. Requirements cannot change their versions."""
_ERRNO = re.compile(r"(?:\[Errno|\(os error) (\d+)[\])]")
"""Number of an error of the operating system in the output of pip, and of build tools in Rust."""
_OF_VOLUME = FULL | {errno.EIO, errno.EROFS, errno.ESTALE}
"""Errors of volumes in pip's output. Others, such as timeouts, may be errors of its package index."""


def archive_folder(kvs: KvsClient, volumes: Volumes, sha256: str | None) -> str:
    """Return the folder of the extracted archive, or "" without an archive."""
    if sha256 is None:
        return ""
    folder = volumes.archive(sha256)
    if not folder.exists():
        extract(kvs.archive(sha256), folder)
    return str(folder)


def python_for(folder: str, volumes: Volumes) -> str:
    """Return the interpreter for an archive's user code. The first call installs requirements.

    Raises:
        RequirementsError: pip failed; the message quotes it.
        StorageFullError, VolumeError: the volume is full or unavailable.
    """
    requirements = Path(folder) / "requirements.txt"
    if not folder or not requirements.exists():
        return sys.executable
    target = volumes.environment(_fingerprint(requirements.read_bytes()))
    with volume_errors_named(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.with_suffix(".lock").open("w") as lock:
            # Workers and containers of one machine share this volume: one installs, the others wait for it.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (target / "complete").exists():
                shutil.rmtree(target, ignore_errors=True)
                _install(requirements, target)
                (target / "complete").touch()
    return str(target / "bin" / "python")


def _fingerprint(requirements: bytes) -> str:
    """Return the name of an environment. It changes with the interpreter and with the versions of `_HELD`."""
    held = [f"{name}=={_version(name)}" for name in _HELD]
    here = "\n".join([sys.executable, sys.version, platform.machine(), *held]).encode()
    return hashlib.sha256(requirements + b"\0" + here).hexdigest()[:16]


def _install(requirements: Path, target: Path) -> None:
    _run([sys.executable, "-m", "venv", "--without-pip", str(target)], requirements)
    python = str(target / "bin" / "python")
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(target), "platbase": str(target)}))
    inherited = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")} | {
        p for p in sys.path if p.endswith("-packages")
    }
    sources = {entry for entry in sys.path if entry and Path(entry).is_dir()} - inherited
    packages.mkdir(parents=True, exist_ok=True)
    # Use `addsitedir` rather than paths: packages installed in development mode need their .pth files.
    (packages / "cerebro-worker.pth").write_text(
        "".join(f"import site; site.addsitedir({path!r})\n" for path in sorted(inherited))
        + "".join(f"{path}\n" for path in sorted(sources))
    )
    constraints = target / "constraints.txt"
    constraints.write_text("".join(f"{name}=={found}\n" for name in _HELD if (found := _version(name))))
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    _run([*pip, "-r", str(requirements), "-c", str(constraints)], requirements)


def _version(name: str) -> str:
    try:
        return version(name).split("+", 1)[0]
    except PackageNotFoundError:
        return ""


def _run(command: list[str], requirements: Path) -> None:
    try:
        done = subprocess.run(
            with_parent_death_signal(command),
            cwd=requirements.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=_LIMIT_S,
        )
    except subprocess.TimeoutExpired as cause:
        raise RequirementsError(
            f"requirements.txt of the uploaded code was not installed within {_LIMIT_S:g} s; pip said so far:\n"
            f"{(cause.stdout or b'')[-_TAIL:]!r}"
        ) from cause
    if done.returncode != 0:
        output = done.stdout[-_TAIL:].strip()
        for number in map(int, _ERRNO.findall(output)):
            if number in _OF_VOLUME:
                raise OSError(number, f"{os.strerror(number)}; pip said:\n{output}")
        raise RequirementsError(
            f"requirements.txt of the uploaded code could not be installed; pip said:\n{output}"
        )
