"""The executables: are they there, are they new enough."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from cerebro.cloud.preflight.finding import Finding, fail, ok, unknown, warn
from cerebro.cloud.runner import Runner

Version = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class _Tool:
    name: str
    asked: tuple[str, ...]
    oldest: Version
    because: str
    """Why not an older one."""
    install: str


_TOOLS = (
    _Tool(
        name="eksctl",
        asked=("version",),
        oldest=(0, 200),
        because="pod identities for addons, GPU images of Amazon Linux 2023",
        install="https://eksctl.io/installation/ (macOS: brew install eksctl)",
    ),
    _Tool(
        name="kubectl",
        asked=("version", "--client"),
        oldest=(1, 28),
        because="flags that are used here",
        install="https://kubernetes.io/docs/tasks/tools/ (macOS: brew install kubectl)",
    ),
    _Tool(
        name="helm",
        asked=("version", "--short"),
        oldest=(3, 12),
        because="flags that are used here",
        install="https://helm.sh/docs/intro/install/ (macOS: brew install helm)",
    ),
    _Tool(
        name="aws",
        asked=("--version",),
        oldest=(2, 12),
        because="tokens for the cluster's API (version 1 may work)",
        install="https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html",
    ),
)


def check_tools(runner: Runner, kubernetes: str) -> Iterator[Finding]:
    """One finding per executable; `kubernetes` is the cluster's minor version, which kubectl should be near to."""
    for tool in _TOOLS:
        if runner.find(tool.name) is None:
            yield fail(tool.name, "is not on PATH", f"install it: {tool.install}")
            continue
        answer = runner.look(tool.name, *tool.asked)
        version = parse_version(answer.output or answer.errors)
        if answer.status != 0 or version is None:
            said = (answer.errors or answer.output).strip().splitlines()[-1:]
            yield unknown(tool.name, f"does not tell its version: {' '.join(said) or 'no output'}")
        elif version < tool.oldest:
            wanted = ".".join(map(str, tool.oldest))
            verdict = warn if tool.name == "aws" else fail
            yield verdict(
                tool.name, f"{_text(version)} is too old: {wanted} or newer ({tool.because})", tool.install
            )
        elif tool.name == "kubectl" and abs(version[1] - int(kubernetes.partition(".")[2])) > 1:
            yield warn(
                tool.name, f"{_text(version)} is more than one minor version from the cluster's {kubernetes}"
            )
        else:
            yield ok(tool.name, _text(version))


def parse_version(text: str) -> Version | None:
    """The first version number in what a tool says of itself."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return None if found is None else tuple(int(part) for part in found.groups(default="0"))


def _text(version: Version) -> str:
    return ".".join(map(str, version))
