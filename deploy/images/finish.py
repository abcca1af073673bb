"""Prepare a folder of installed packages for an image: ``finish.py FOLDER [--trim IMAGE]``.

Removes files that the image never uses, replaces duplicate libraries by links, then compiles the rest. Python never
checks this bytecode against its source: sources in an image do not change, and builders that set all files to one time
would make every check fail. Uses the standard library only.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from py_compile import PycInvalidationMode

_EVERYWHERE = (
    # Tests of packages, and sources that need a compiler. About 40 MB.
    "numpy/**/tests",
    "numpy/distutils",
    "pandas/tests",
    "pyarrow/tests",
    "pyarrow/include",
    "pyarrow/src",
    "scipy/**/tests",
    "sklearn/**/tests",
    # Headers, which are useless without a compiler. 290 MB.
    "tensorflow/include",
    # Arrow's RPC: a separate module that no other Arrow library links to. 35 MB.
    "pyarrow/*flight*",
)

_DATABASE_OF_OPTUNA = (
    # Cerebro uses only Optuna's samplers, which need no database. 32 MB. The metadata is removed too, so that pip
    # installs these packages if a requirements.txt needs them.
    *("alembic", "greenlet", "mako", "sqlalchemy"),
    *("alembic-*", "greenlet-*", "[Mm]ako-*", "[Ss][Qq][Ll][Aa]lchemy-*"),
)

TRIMMED = {
    "control": (
        *_EVERYWHERE,
        *_DATABASE_OF_OPTUNA,
        # TensorBoard's viewer: its pages and its fast reader. The control plane only writes event files. 25 MB.
        "tensorboard/webfiles.zip",
        "tensorboard_data_server/bin",
        # The pages send only plotly's browser script; clients build the figures. 60 MB.
        "plotly/graph_objs",
        "plotly/validators",
        "plotly/validator_cache.py",
        "plotly/labextension",
        "plotly/package_data/datasets",
        "plotly/package_data/widgetbundle.js",
        # The controller's Kubernetes calls need no generated classes. 120 MB.
        "kubernetes/aio",
        "kubernetes/client/api/[a-z]*",
        "kubernetes/client/models/[a-z]*",
    ),
    "worker": (*_EVERYWHERE, *_DATABASE_OF_OPTUNA),
    "notebook": _EVERYWHERE,
}
"""Patterns below site-packages to remove, by image. Workers and notebooks run user code, so nearly all modules stay."""

_NOT_COMPILED = re.compile(r"/site-packages/pip/")
"""Not compiled: pip runs once for each requirements.txt, and its bytecode would take 8 MB."""

SERVICES = {"s3", "sts", "sso", "sso-oidc", "signin"}
"""AWS services needed to read a bucket: the store and the sign-in services.

Descriptions of the other four hundred services take 20 MB. Only the control image drops them; on a worker, user code
may call any service.
"""


def trim(packages: Path, image: str) -> None:
    """Remove files that `image` never uses from a folder ``site-packages``."""
    doomed = [path for pattern in TRIMMED[image] for path in packages.glob(pattern)]
    if image == "control":
        described = (path for path in (packages / "botocore" / "data").glob("*/") if path.is_dir())
        doomed += [path for path in described if path.name not in SERVICES]
    for path in doomed:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def link_copies(packages: Path) -> None:
    """Replace identical shared libraries in a folder by links to one file: wheels cannot contain links."""
    first: dict[tuple[Path, bytes], Path] = {}
    for path in sorted(packages.glob("pyarrow/lib*.so*")):
        key = path.parent, hashlib.sha256(path.read_bytes()).digest()
        if (kept := first.setdefault(key, path)) != path:
            path.unlink()
            path.symlink_to(kept.name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Trim the folder, then compile it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trim", choices=sorted(TRIMMED), metavar="IMAGE")
    options = parser.parse_args(arguments)
    for packages in options.folder.glob("lib/python*/site-packages"):
        if options.trim:
            trim(packages, options.trim)
            link_copies(packages)
        for cache in sorted(packages.rglob("__pycache__")):
            shutil.rmtree(cache)
        # Ignore errors: some packages contain templates and samples that end in .py but are not valid Python.
        compileall.compile_dir(
            packages,
            quiet=2,
            workers=0,
            rx=_NOT_COMPILED,
            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
