"""Copy examples, notebooks, the Helm chart and cluster files into the wheel. All else is in `pyproject.toml`.

`cerebro.runtime.shipped_files` finds them there. An editable installation uses the folders of the checkout.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = {
    "chart": "deploy/helm/cerebro",
    "clusters": "infra/eksctl",
    "examples": "examples",
    "notebooks": "notebooks",
}
"""Folder in the wheel's `cerebro/shipped/`, and its source in the checkout."""


class BuildWithShippedFiles(build_py):
    """Builds the packages, then copies the folders of `SHIPPED`."""

    def run(self) -> None:
        """Build."""
        super().run()
        if self.editable_mode:
            return
        for name, source in SHIPPED.items():
            target = Path(self.build_lib, "cerebro", "shipped", name)
            shutil.rmtree(target, ignore_errors=True)
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc", ".ipynb_checkpoints", "README.md", "out")
            shutil.copytree(Path(__file__).parent / source, target, ignore=ignored)


setup(cmdclass={"build_py": BuildWithShippedFiles})
