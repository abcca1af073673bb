"""Environment variables passed from the cluster's launcher to a service (`services`). Only named variables are passed.

A shell's environment contains secrets, and settings that differ between terminals. Object-store credentials
go only to services that read objects, the token only to clients of the store.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_MACHINE = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_*", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV",
    "CONDA_*", "XDG_*",
    "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONHASHSEED", "PYTHONWARNINGS",
    "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONMALLOC", "PYTHONFAULTHANDLER",
    "MALLOC_*", "GLIBC_TUNABLES",
)  # fmt: skip

_NETWORK = (
    "http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy",
    "HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
)  # fmt: skip

_OBJECTS = ("AWS_*", "BOTO_*", "S3_*", "AZURE_*", "GOOGLE_*", "GCS_*", "FSSPEC_*")
"""Of S3, and of stores that packages add."""

_COMPUTING = (
    "CUDA_*", "NVIDIA_*", "NCCL_*", "CUBLAS_*", "OMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "TORCH_*",
    "PYTORCH_*", "HF_*", "PIP_*",
)  # fmt: skip

_SETTINGS = ("CEREBRO_*",)
"""Settings that a service reads and the cluster does not set itself, such as CEREBRO_WEIGHT."""


_SECRET = re.compile(r"CEREBRO_(?:[A-Z]+_)?TOKEN")
"""Services get tokens from the cluster, never from the shell: workers run user code."""


def control_plane(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for services that neither read objects nor compute."""
    return {
        **_chosen(environment, (*_MACHINE, *_SETTINGS)),
        "PYTHONUNBUFFERED": "1",
        # Their threads mostly wait: more memory arenas or computing threads would only cost memory.
        "MALLOC_ARENA_MAX": environment.get("MALLOC_ARENA_MAX", "2"),
        "OMP_NUM_THREADS": "1",
    }


def reader(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for controller and dispatcher, which also read metadata from object stores."""
    return {**control_plane(environment), **_chosen(environment, (*_NETWORK, *_OBJECTS))}


def worker(environment: Mapping[str, str], cores: int) -> dict[str, str]:
    """Return the variables for workers, which read objects, compute, and install requirements of user code."""
    return {
        **_chosen(environment, (*_MACHINE, *_SETTINGS, *_NETWORK, *_OBJECTS, *_COMPUTING)),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(cores),
    }


def bare(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for other projects' programs: no settings, no secrets."""
    return {**_chosen(environment, _MACHINE), "PYTHONUNBUFFERED": "1"}


def _chosen(environment: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str]:
    names = {pattern for pattern in patterns if not pattern.endswith("*")}
    prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    chosen = {name: text for name, text in environment.items() if name in names or name.startswith(prefixes)}
    return {name: text for name, text in chosen.items() if not _SECRET.fullmatch(name)}
