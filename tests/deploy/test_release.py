"""`make release`: which checkouts it refuses, and the list of packages."""

from __future__ import annotations

import json
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from scripts import sbom
from scripts.release import ReleaseError, build, checked_version
from tests.deploy import tools

pytestmark = pytest.mark.commands

ROOT = Path(__file__).resolve().parents[2]


class Checkout:
    """A repository with the files that name the version."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "-q")
        self.write("pyproject.toml", '[project]\nname = "x"\nversion = "1.2.0"\n')
        self.write("deploy/helm/cerebro/Chart.yaml", "version: 1.2.0\nappVersion: 1.2.0\n")
        self.write("CHANGELOG.md", "# Changelog\n\n## [1.2.0] - 2026-11-28\n\n- A change.\n")
        self.commit()

    def git(self, *arguments: str) -> None:
        """Run git as a fixed author."""
        author = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "core.hooksPath=/dev/null"]
        subprocess.run(["git", *author, *arguments], cwd=self.root, check=True, capture_output=True)

    def write(self, name: str, text: str) -> None:
        """Write a file."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def commit(self) -> None:
        """Commit all files."""
        self.git("add", "-A")
        self.git("commit", "-qm", "files")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """Make a checkout of version 1.2.0 without a tag."""
    return Checkout(tmp_path)


def test_a_clean_tagged_checkout_is_released(checkout: Checkout) -> None:
    """Its version is the tag's."""
    checkout.git("tag", "v1.2.0")
    assert checked_version(checkout.root) == "1.2.0"


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("pyproject.toml", '[project]\nversion = "1.3.0"\n', "HEAD lacks the tag v1.3.0: it has v1.2.0"),
        ("deploy/helm/cerebro/Chart.yaml", "version: 1.1.0\nappVersion: 1.2.0\n", "Chart.yaml has version 1.1.0"),
        ("deploy/helm/cerebro/Chart.yaml", "version: 1.2.0\nappVersion: 1.1.0\n", "Chart.yaml has appVersion 1.1.0"),
        ("CHANGELOG.md", "## [Unreleased]\n\n## [1.2.0]\n", "no heading '## [1.2.0] - YYYY-MM-DD'"),
    ],
)  # fmt: skip
def test_a_file_with_another_version_is_refused(
    checkout: Checkout, name: str, text: str, problem: str
) -> None:
    """The error names the file and both versions."""
    checkout.write(name, text)
    checkout.commit()
    checkout.git("tag", "v1.2.0")
    with pytest.raises(ReleaseError) as caught:
        checked_version(checkout.root)
    assert problem in str(caught.value)


def test_all_problems_are_reported_together(checkout: Checkout) -> None:
    """A missing tag and a changed file."""
    checkout.write("new.txt", "")
    with pytest.raises(ReleaseError) as caught:
        checked_version(checkout.root)
    assert "such as new.txt" in str(caught.value)
    assert "HEAD lacks the tag v1.2.0: it has no tag" in str(caught.value)


@pytest.mark.slow
def test_a_release_has_all_files_and_their_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Built from the last commit; without Docker it says that no images were built."""
    tools.helm()
    monkeypatch.setenv("DOCKER", "no-such-program")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    target = tmp_path / "dist"
    build(ROOT, target, version)
    assert {path.name for path in target.iterdir()} == {
        f"cerebro-{version}.tgz",
        f"cerebro_platform-{version}-py3-none-any.whl",
        f"cerebro_platform-{version}.cdx.json",
        f"cerebro_platform-{version}.tar.gz",
        "SHA256SUMS",
    }
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=target, check=True)
    assert len((target / "SHA256SUMS").read_text().splitlines()) == 4
    assert "torch==" in (target / f"cerebro_platform-{version}.cdx.json").read_text()
    assert "No images were built" in capsys.readouterr().out


def test_the_sbom_is_valid_and_lists_indirect_packages(tmp_path: Path) -> None:
    """By CycloneDX's schema; with versions, licences and who requires whom."""
    wheel = tmp_path / "own-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            "own-1.0.dist-info/METADATA",
            "Metadata-Version: 2.4\nName: own\nVersion: 1.0\nLicense-Expression: Apache-2.0\nProvides-Extra: all\n"
            "Provides-Extra: web\nRequires-Dist: flask; extra == 'web'\nRequires-Dist: own[web]; extra == 'all'\n"
            "Requires-Dist: pytest; extra == 'test'\n",
        )
    text = sbom.document(wheel, "all")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    components = {each["name"]: each for each in document["components"]}
    assert {"flask", "werkzeug"} <= set(components)
    assert not {"own", "pytest"} & set(components)
    assert all(each["licenses"] and each["version"] in each["purl"] for each in components.values())
    requirements = {each["ref"]: each.get("dependsOn", []) for each in document["dependencies"]}
    assert requirements["own==1.0"] == [components["flask"]["bom-ref"]]
    assert components["werkzeug"]["bom-ref"] in requirements[components["flask"]["bom-ref"]]
