"""Build a release from a tag: ``python -m scripts.release``, which `make release` runs.

Writes into `dist/`: the source distribution, the wheel, the packaged chart, a list of all packages (SBOM, CycloneDX
JSON) and SHA256SUMS. Builds the images if Docker is available, and pushes them if REGISTRY is set. Uploads nothing
else.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

import yaml

from scripts import sbom
from tests.deploy import tools

ROOT = Path(__file__).resolve().parents[1]


class ReleaseError(Exception):
    """A reason why the checkout is not a release."""


def main() -> int:
    """Check the checkout, then build everything."""
    try:
        version = checked_version(ROOT)
        build(ROOT, ROOT / "dist", version)
    except (ReleaseError, subprocess.CalledProcessError) as problem:
        print(f"make release: {problem}", file=sys.stderr)
        return 1
    return 0


def checked_version(root: Path) -> str:
    """Return the version to release.

    Raises:
        ReleaseError: with all problems, one per line: the tree has changes, or tag, package, chart and changelog do not
            name one version.
    """
    version = str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])
    chart = yaml.safe_load((root / "deploy/helm/cerebro/Chart.yaml").read_text())
    problems = []
    if changed := _git(root, "status", "--porcelain").splitlines():
        names = ", ".join(line[3:] for line in changed[:5])
        problems.append(f"{len(changed)} files have changes that are not committed, such as {names}")
    if f"v{version}" not in (tags := _git(root, "tag", "--points-at", "HEAD").split()):
        there = f"it has {', '.join(tags)}" if tags else "it has no tag"
        problems.append(f"pyproject.toml has version {version}, but HEAD lacks the tag v{version}: {there}")
    for key in ("version", "appVersion"):
        if str(chart[key]) != version:
            problems.append(f"Chart.yaml has {key} {chart[key]}, pyproject.toml has version {version}")
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    if not re.search(heading, (root / "CHANGELOG.md").read_text(), re.MULTILINE):
        problems.append(f"CHANGELOG.md has no heading '## [{version}] - YYYY-MM-DD'")
    if problems:
        raise ReleaseError("nothing was built:\n" + "\n".join(f"  - {problem}" for problem in problems))
    return version


def build(root: Path, target: Path, version: str) -> None:
    """Build all files of a release into `target`, which is emptied before."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        export(root, source)
        epoch = _git(root, "log", "-1", "--format=%ct").strip()
        wheel = build_wheel(source, target, {"SOURCE_DATE_EPOCH": epoch})
        _package_chart(source, target)
    (target / f"cerebro_platform-{version}.cdx.json").write_text(sbom.document(wheel, "local"))
    files = sorted(target.iterdir())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (target / "SHA256SUMS").write_text("".join(sums))
    print(f"{target} has the release {version}:")
    for path in [*files, target / "SHA256SUMS"]:
        print(f"  {path.stat().st_size / 1e6:6.2f} MB  {path.name}")
    _build_images(root, version)


def export(root: Path, target: Path) -> None:
    """Copy the files of the last commit, so that build files and caches of the checkout have no influence."""
    with tempfile.TemporaryFile() as archive:
        subprocess.run(["git", "archive", "HEAD"], cwd=root, stdout=archive, check=True)
        archive.seek(0)
        with tarfile.open(fileobj=archive) as files:
            _extract(files, target)


def _extract(files: tarfile.TarFile, folder: Path) -> None:
    # Before 3.11.4 Python has no filters and ignores this attribute.
    files.extraction_filter = getattr(tarfile, "data_filter", None)
    files.extractall(folder)


def build_wheel(source: Path, target: Path, settings: Mapping[str, str]) -> Path:
    """Build the source distribution from `source`, and the wheel from it. Return the wheel.

    Args:
        source: a copy of the checkout, which the build may change.
        settings: further environment variables.
    """
    _call_backend("build_sdist", source, target, settings)
    (archive,) = target.glob("cerebro_platform-*.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(archive) as files:
            _extract(files, Path(folder))
        (unpacked,) = Path(folder).iterdir()
        _call_backend("build_wheel", unpacked, target, settings)
    (wheel,) = target.glob("cerebro_platform-*.whl")
    return wheel


def _call_backend(function: str, source: Path, target: Path, settings: Mapping[str, str]) -> None:
    """Call the build backend of pyproject.toml, which needs no network."""
    program = f"import sys; from setuptools import build_meta; build_meta.{function}(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", program, str(target)],
        cwd=source,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ReleaseError(f"{function} failed:\n{done.stderr}")


def _package_chart(source: Path, target: Path) -> None:
    helm = tools.find("helm")
    if helm is None:
        raise ReleaseError("helm is missing: make tools")
    chart = str(source / "deploy/helm/cerebro")
    subprocess.run([str(helm), "package", chart, "-d", str(target)], check=True, stdout=subprocess.DEVNULL)


def _build_images(root: Path, version: str) -> None:
    docker = os.environ.get("DOCKER") or "docker"
    if (
        shutil.which(docker) is None
        or subprocess.run([docker, "info"], capture_output=True, check=False).returncode
    ):
        print(
            f"No images were built: `{docker} info` fails. Build them where it works: make images VERSION={version}"
        )
        return
    subprocess.run([str(root / "deploy/images/build")], env={**os.environ, "VERSION": version}, check=True)


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
