"""Checks before the creation name each problem with a fix."""

from __future__ import annotations

import pytest

from cerebro.cloud.clusterfile import ClusterFile
from cerebro.cloud.preflight import (
    Finding,
    Verdict,
    check,
    check_machines,
)
from tests.cloud.conftest import FILE, Terminal, no_credentials


def checked(terminal: Terminal) -> list[Finding]:
    """Run all checks and assert that they changed nothing."""
    found, _ = check(terminal.site())
    assert terminal.cloud.changes == []
    return found


def failed(found: list[Finding]) -> list[str]:
    """List the names of failed checks."""
    return [finding.name for finding in found if finding.verdict is Verdict.FAIL]


def verdicts(found: list[Finding]) -> dict[str, Verdict]:
    """Return verdicts by the name of the check."""
    return {finding.name: finding.verdict for finding in found}


def said(found: list[Finding], name: str) -> str:
    """Return message and fix of a check."""
    finding = next(finding for finding in found if finding.name == name)
    return f"{finding.message} -> {finding.remedy}"


def test_a_good_file_in_a_good_account_passes(terminal: Terminal) -> None:
    """The nodes' zone offers all types."""
    site = terminal.site()
    found, _ = check(site)
    assert [finding for finding in found if finding.verdict is not Verdict.OK] == []
    assert site.zones == ("us-east-1a", "us-east-1b")


@pytest.mark.parametrize("tool", ["eksctl", "kubectl", "helm", "aws"])
def test_a_missing_tool_is_named_with_its_download_page(terminal: Terminal, tool: str) -> None:
    """All tools are checked, not only the first."""
    (terminal.folder / "bin" / tool).unlink()
    found = checked(terminal)
    assert verdicts(found)[tool] is Verdict.FAIL
    assert "install it: https://" in said(found, tool)


def test_an_old_tool_is_refused(terminal: Terminal) -> None:
    """With the oldest supported version."""
    (terminal.folder / "bin" / "eksctl").write_text("#!/bin/sh\necho 0.150.0\n")
    assert "0.150.0 is too old: 0.200 or newer" in said(checked(terminal), "eksctl")


@pytest.mark.parametrize("version", ["1.30", "1.77"])
def test_a_version_that_eks_does_not_offer_is_refused(terminal: Terminal, version: str) -> None:
    """Old and unknown versions; the error lists the offered ones."""
    terminal.write(kubernetes=version)
    assert f"EKS does not offer {version} -> there are 1.31, 1.33, 1.34" in said(
        checked(terminal), "kubernetes"
    )


def test_missing_credentials_skip_the_other_checks(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the sign-in command and the list of skipped checks."""
    site = terminal.site()
    monkeypatch.setattr(site.aws, "read", no_credentials)
    found, _ = check(site)
    assert "aws configure" in said(found, "credentials")
    assert "not checked: instance types" in said(found, "AWS")
    assert failed(found) == ["credentials"]


def test_an_instance_type_that_does_not_exist_is_refused(terminal: Terminal) -> None:
    """The error names the field."""
    terminal.write(controller={"instance_type": "m5.9xlarge"})
    assert "m5.9xlarge does not exist in us-east-1" in said(checked(terminal), "controller.instance_type")


@pytest.mark.parametrize(
    ("has", "architecture", "gpus", "name", "verdict"),
    [
        (0, "x86_64", 1, "gpus", Verdict.FAIL),
        (1, "x86_64", 2, "gpus", Verdict.FAIL),
        (4, "x86_64", 1, "gpus", Verdict.WARN),
        (1, "arm64", 1, "instance_type", Verdict.FAIL),
        (1, "x86_64", 1, "instance_type", Verdict.OK),
    ],
)
def test_machines_must_have_the_requested_gpus_and_architecture(
    has: int, architecture: str, gpus: int, name: str, verdict: Verdict
) -> None:
    """No GPU, too few, too many, or the wrong architecture."""
    workers = [{"name": "gpu", "instance_type": "g5.xlarge", "count": 1, "gpus": gpus}]
    file = ClusterFile.model_validate({**FILE, "workers": workers})
    control = {"vcpus": 4, "memory_mib": 16384, "gpus": 0, "architectures": ["x86_64"]}
    machine = {**control, "gpus": has, "architectures": [architecture]}
    found = list(check_machines(file, {"g5.xlarge": machine, "m5.xlarge": control}))
    assert [finding.verdict for finding in found if finding.name == f"workers[0].{name}"] == [verdict]


@pytest.mark.parametrize(
    ("machine", "verdict", "said_of_it"),
    [
        ({}, Verdict.OK, "g6.xlarge: 4 vCPUs, 16 GiB, 1 GPUs"),
        ({"vcpus": 8, "memory_mib": 32768}, Verdict.OK, "8 vCPUs"),
        ({"memory_mib": 8192}, Verdict.WARN, "g6.xlarge has less memory (8 GiB) than g5.xlarge"),
        ({"vcpus": 2, "memory_mib": 8192}, Verdict.WARN, "fewer vCPUs (2) and less memory (8 GiB)"),
        ({"gpus": 0}, Verdict.FAIL, "1 asked for, g6.xlarge has 0"),
        ({"architectures": ["arm64"]}, Verdict.FAIL, "the images are built for x86_64"),
        (None, Verdict.FAIL, "g6.xlarge does not exist in us-east-1"),
    ],
)
def test_fallbacks_must_have_the_requested_resources(
    machine: dict[str, object] | None, verdict: Verdict, said_of_it: str
) -> None:
    """Each fallback is checked like the main type, including the workers' resources."""
    workers = [
        {"name": "gpu", "instance_type": "g5.xlarge", "fallbacks": ["g6.xlarge"], "count": 1, "gpus": 1}
    ]
    file = ClusterFile.model_validate({**FILE, "workers": workers})
    first = {"vcpus": 4, "memory_mib": 16384, "gpus": 1, "architectures": ["x86_64"]}
    machines = {"g5.xlarge": first, "m5.xlarge": {**first, "gpus": 0}}
    machines |= {"g6.xlarge": {**first, **machine}} if machine is not None else {}
    *others, found = check_machines(file, machines)
    assert {finding.verdict for finding in others} == {Verdict.OK}
    assert found.verdict is verdict
    assert said_of_it in found.message
    assert found.name in ("workers[0].fallbacks[0]", "workers[0].gpus")


def test_quotas_are_counted_for_the_largest_type_of_a_group(terminal: Terminal) -> None:
    """In the worst case each node has that type."""
    spot = {**FILE["workers"][0], "fallbacks": ["g5.4xlarge"]}
    terminal.write(workers=[spot])
    found = checked(terminal)
    assert said(found, "quota vCPUs G and VT, spot").startswith("32 needed")
    assert failed(found) == []


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("L-1216C47A", "quota vCPUs Standard (A, C, D, H, I, M, R, T, Z), on demand"),
        ("L-DB2E81BA", "quota vCPUs G and VT, on demand"),
        ("L-3819A6DF", "quota vCPUs G and VT, spot"),
    ],
)
def test_a_quota_that_is_too_small_is_refused(terminal: Terminal, code: str, name: str) -> None:
    """Spot and on-demand quotas are separate; the error links to the quota request."""
    terminal.cloud.quotas[code] = 0
    found = checked(terminal)
    assert failed(found) == [name]
    assert f"quotas/{code}" in said(found, name)


def test_zones_that_do_not_offer_a_type_are_refused(terminal: Terminal) -> None:
    """The error lists zones that offer it."""
    workers = [{"name": "gpu", "instance_type": "p4d.24xlarge", "count": 1, "gpus": 8}]
    terminal.write(zones=["us-east-1f", "us-east-1a"], workers=workers)
    assert "us-east-1f does not offer all instance types -> zones that do: us-east-1" in said(
        checked(terminal), "zones"
    )
