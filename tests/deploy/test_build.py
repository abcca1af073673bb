"""`deploy/images/build`, the script behind `make images`, with a docker stand-in that records its calls."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = '#!/bin/sh\necho "$*" >> "$ASKED"\n'


class Checkout:
    """A folder with the script and its inputs, and a PATH with the stand-in."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.request_log = folder / "checkout", folder / "asked"
        self.images = self.folder / "deploy" / "images"
        for name in ("wheels", "certificates"):
            (self.images / name).mkdir(parents=True)
        shutil.copy(ROOT / "deploy" / "images" / "build", self.images)
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.install("docker")

    def install(self, program: str) -> None:
        """Put a stand-in on PATH."""
        (self.bin / program).write_text(STAND_IN)
        (self.bin / program).chmod(0o755)

    def build(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the script."""
        path = f"{self.bin}:/usr/bin:/bin"
        given = {"PATH": path, "VERSION": "1.2.3", "ASKED": str(self.request_log), **environment}
        command = [str(self.images / "build")]
        return subprocess.run(command, env=given, capture_output=True, text=True, check=False)

    def builds(self) -> list[str]:
        """List the images that docker was asked to build."""
        lines = self.request_log.read_text().splitlines() if self.request_log.exists() else []
        return [line for line in lines if line.startswith("build ")]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_three_images_are_built_and_tagged_with_the_version(checkout: Checkout) -> None:
    """Control, worker, notebook, in this order; without a registry nothing is pushed."""
    assert checkout.build().returncode == 0
    targets = [line.split("--target ")[1].split()[:3] for line in checkout.builds()]
    assert targets == [[n, "--tag", f"cerebro/cerebro-{n}:1.2.3"] for n in ("control", "worker", "notebook")]
    assert "push" not in checkout.request_log.read_text()


def test_a_registry_prefixes_the_names_and_receives_the_images(checkout: Checkout) -> None:
    """With or without a trailing slash."""
    assert checkout.build(REGISTRY="registry.example/team/").returncode == 0
    lines = checkout.request_log.read_text().splitlines()
    pushed = [line.removeprefix("push ") for line in lines if line.startswith("push ")]
    assert pushed == [
        f"registry.example/team/cerebro/cerebro-{name}:1.2.3" for name in ("control", "worker", "notebook")
    ]


def test_local_wheels_and_certificates_are_copied_into_the_context(
    checkout: Checkout, tmp_path: Path
) -> None:
    """The builder sees no folder of this machine, so wheels are copied and index addresses passed on."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "torch-1-py3-none-any.whl").touch()
    authority = tmp_path / "authority.pem"
    authority.write_text("authority")
    done = checkout.build(PIP_FIND_LINKS=f"{wheels} https://wheels.example", PIP_CERT=str(authority))
    assert done.returncode == 0, done.stderr
    assert (checkout.images / "wheels" / "torch-1-py3-none-any.whl").exists()
    assert (checkout.images / "certificates" / "pip-cert.crt").read_text() == "authority"
    assert all("PIP_FIND_LINKS=https://wheels.example " in line for line in checkout.builds())


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"DOCKER": "no-such-docker"}, "'no-such-docker' is not on PATH"),
        ({"DOCKER": "false"}, "'false info' fails: is its daemon running"),
        ({"WHEELS": "/no/such/folder"}, "WHEELS is '/no/such/folder', expected a folder"),
    ],
)
def test_missing_prerequisites_are_reported_before_the_build(
    environment: dict[str, str], said: str, checkout: Checkout
) -> None:
    """Exit status 1, one line, no build."""
    done = checkout.build(**environment)
    assert done.returncode == 1
    assert said in done.stderr
    assert checkout.builds() == []
