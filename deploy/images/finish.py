"""Makes a folder of installed packages ready for an image: ``finish.py FOLDER [--trim IMAGE]``.

Removes what no process of that image can use, makes one of libraries that a wheel holds several times, then compiles
the rest. Bytecode is marked as never to be checked: in an image sources do not change, and builders that set all files
to one time would make every check fail. Standard library only.
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
    # Tests of packages, and what there would have to be a compiler for. About 40 MB.
    "numpy/**/tests",
    "numpy/distutils",
    "pandas/tests",
    "pyarrow/tests",
    "pyarrow/include",
    "pyarrow/src",
    "scipy/**/tests",
    "sklearn/**/tests",
    # Headers, of which there is nothing to be compiled either. 290 MB.
    "tensorflow/include",
    # Arrow's RPC: a module of its own, which nothing else of Arrow is linked to. 35 MB.
    "pyarrow/*flight*",
)

_DATABASE_OF_OPTUNA = (
    # Of Optuna the samplers are used, which keep nothing in a database. 32 MB. What pip knows of them goes, too: it is
    # to install whichever of them a requirements.txt asks for.
    *("alembic", "greenlet", "mako", "sqlalchemy"),
    *("alembic-*", "greenlet-*", "[Mm]ako-*", "[Ss][Qq][Ll][Aa]lchemy-*"),
)

TRIMMED = {
    "control": (
        *_EVERYWHERE,
        *_DATABASE_OF_OPTUNA,
        # TensorBoard's viewer: its pages and its fast reader. The control plane writes event files. 25 MB.
        "tensorboard/webfiles.zip",
        "tensorboard_data_server/bin",
        # Of plotly the pages send the script that browsers run; figures are built by clients. 60 MB.
        "plotly/graph_objs",
        "plotly/validators",
        "plotly/validator_cache.py",
        "plotly/labextension",
        "plotly/package_data/datasets",
        "plotly/package_data/widgetbundle.js",
        # Of the Kubernetes client what controllers use asks without the generated classes. 120 MB.
        "kubernetes/aio",
        "kubernetes/client/api/[a-z]*",
        "kubernetes/client/models/[a-z]*",
    ),
    "worker": (*_EVERYWHERE, *_DATABASE_OF_OPTUNA),
    "notebook": _EVERYWHERE,
}
"""Per image, patterns of what goes, below site-packages. In workers and notebooks user code runs: there nearly all that
can be imported stays."""

_NOT_COMPILED = re.compile(r"/site-packages/pip/")
"""pip runs once for each requirements.txt; its bytecode would be 8 MB."""

SERVICES = {"s3", "sts", "sso", "sso-oidc", "signin"}
"""Of the descriptions of AWS' services, those that reading a bucket takes: the store itself and the ways to sign in.
The other four hundred are 20 MB. They go from the control image only; in a worker user code may call anything."""


def trim(packages: Path, image: str) -> None:
    """Remove what `image` cannot use from a folder ``site-packages``."""
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
    """Replace equal shared libraries of a folder by links to one of them: wheels cannot hold links."""
    first: dict[tuple[Path, bytes], Path] = {}
    for path in sorted(packages.glob("pyarrow/lib*.so*")):
        key = path.parent, hashlib.sha256(path.read_bytes()).digest()
        if (kept := first.setdefault(key, path)) != path:
            path.unlink()
            path.symlink_to(kept.name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Trim, then compile."""
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
        # Some packages carry templates and samples that end in .py and are no Python: not a reason to stop.
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
