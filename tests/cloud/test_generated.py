"""Generated configurations are valid for eksctl, helm and kubectl."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from cerebro.cloud.clusterfile import ClusterFile
from cerebro.cloud.manifests import (
    STACK,
    configuration,
    releases,
    stack_parameters,
    storage_classes,
)
from tests.cloud.conftest import FILE
from tests.cloud.deploying import load
from tests.deploy.tools import helm
from tests.waiting import HANG_S

REPOSITORY = Path(__file__).parents[2]
SCHEMA = Path(__file__).with_name("eksctl-schema.json")
CHART = REPOSITORY / "deploy" / "helm" / "cerebro"
ZONES = ("us-east-1b", "us-east-1a")


def platform_values(file: ClusterFile) -> Any:
    """Values for the platform's chart."""
    return releases(file, CHART)["platform"].values


def monitoring_values(file: ClusterFile) -> Any:
    """Values for the monitoring chart."""
    return releases(file, CHART)["monitoring"].values


CPU: dict[str, Any] = {
    **FILE,
    "s3": [],
    "workers": [{"name": "cpu", "instance_type": "m6i.large", "count": 2}],
}


SPARE: dict[str, Any] = {
    **FILE,
    "workers": [{**FILE["workers"][0], "fallbacks": ["g6.xlarge", "g5.2xlarge"]}],
}


def test_fallback_types_follow_the_main_type() -> None:
    """In their order, which matters on demand; a group without fallbacks has one type, as before."""
    control, spot = configuration(ClusterFile.model_validate(SPARE), ZONES)["managedNodeGroups"]
    assert spot["instanceTypes"] == ["g5.xlarge", "g6.xlarge", "g5.2xlarge"]
    assert "instanceType" not in spot
    assert (control["instanceType"], "instanceTypes" in control) == ("m5.xlarge", False)


@pytest.mark.parametrize("given", [FILE, CPU, SPARE], ids=["gpu", "cpu", "fallbacks"])
@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "control plane"])
def test_the_configuration_is_valid_under_eksctls_schema(given: dict[str, Any], is_whole: bool) -> None:
    """Both the complete one and the one for the control plane."""
    file = ClusterFile.model_validate(given)
    config = configuration(file, ZONES) if is_whole else configuration(file, ZONES, is_whole=False)
    # Not `jsonschema.validate`: with optional packages it also checks the schema's own format, and eksctl's names are
    # no valid URI references.
    jsonschema.Draft7Validator(json.loads(SCHEMA.read_text())).validate(
        yaml.safe_load(yaml.safe_dump(config))
    )


def test_the_control_node_is_on_demand_and_workers_are_tainted(file: ClusterFile) -> None:
    """Only pods with a toleration run on workers; only workers may be spot."""
    control, spot, firm = configuration(file, ZONES)["managedNodeGroups"]
    assert not control["spot"]
    assert "taints" not in control
    assert (spot["spot"], firm["spot"]) == (True, False)
    assert spot["taints"] == [{"key": "cerebro/role", "value": "worker", "effect": "NoSchedule"}]
    assert (spot["minSize"], spot["desiredCapacity"], spot["maxSize"]) == (0, 2, 2)


def test_network_policies_are_enforced_and_drivers_installed(file: ClusterFile) -> None:
    """EKS ignores policies unless its network addon enforces them."""
    addons = {addon["name"]: addon for addon in configuration(file, ZONES)["addons"]}
    assert json.loads(addons["vpc-cni"]["configurationValues"]) == {"enableNetworkPolicy": "true"}
    assert {"aws-ebs-csi-driver", "aws-efs-csi-driver", "metrics-server", "eks-pod-identity-agent"} <= set(
        addons
    )


def test_roles_read_the_named_buckets_and_nothing_else(file: ClusterFile) -> None:
    """No writes and no other bucket."""
    parameters = stack_parameters(file, ZONES)
    assert parameters["Listed"] == "arn:aws:s3:::pictures"
    assert parameters["Read"] == "arn:aws:s3:::pictures/train*"
    role = load(STACK)["Resources"]["Reader"]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"]
    assert [statement["Action"] for statement in role] == [
        ["s3:ListBucket", "s3:GetBucketLocation"],
        ["s3:GetObject"],
    ]


def test_the_cloudformation_template_is_valid() -> None:
    """AWS' linter knows every resource and property."""
    from cfnlint.api import lint_all as lint  # type: ignore[import-untyped]  # a second: not at each collection

    problems = [problem for problem in lint(STACK.read_text()) if problem.rule.severity != "informational"]
    assert [str(problem) for problem in problems] == []


def test_the_platforms_values_follow_the_file(file: ClusterFile) -> None:
    """Workers, GPUs, volumes and images; overrides take precedence."""
    values = platform_values(file)
    assert (values["worker"]["replicas"], values["worker"]["gpus"]) == (3, 1)
    assert values["images"] == {"registry": file.images.registry, "worker": {"cuda": True}}
    assert (values["storage"]["className"], values["storage"]["podClassName"]) == ("efs-sc", "gp3")
    given = {**FILE, "install": {"chart": {"values": {"worker": {"gpus": 0}, "extra": 1}}}}
    changed = platform_values(ClusterFile.model_validate(given))
    assert changed["worker"]["gpus"] == 0
    assert changed["worker"]["replicas"] == 3
    assert changed["extra"] == 1


@pytest.mark.parametrize("given", [FILE, CPU], ids=["gpu", "cpu"])
def test_the_chart_accepts_the_values(given: dict[str, Any], tmp_path: Path) -> None:
    """helm renders the chart with them, including its schema and its own checks."""
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump(platform_values(ClusterFile.model_validate(given))))
    command = [
        str(helm()),
        "template",
        "cerebro",
        str(CHART),
        "--namespace",
        "cerebro",
        "--values",
        str(path),
    ]
    rendered = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert rendered.returncode == 0, rendered.stderr
    objects = [each for each in yaml.safe_load_all(rendered.stdout) if each]
    accounts = {each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount"}
    associated = (each["Properties"].get("ServiceAccount") for each in load(STACK)["Resources"].values())
    assert {name for name in associated if name} <= accounts
    classes = {
        each["spec"]["storageClassName"] for each in objects if each["kind"] == "PersistentVolumeClaim"
    }
    assert classes <= {"efs-sc", "gp3"}
    services = {each["metadata"]["name"] for each in objects if each["kind"] == "Service"}
    assert {"cerebro-dispatcher", "cerebro-notebook"} <= services  # named in the user's port-forward command


def test_storage_classes_find_their_drivers_and_carry_the_tag(file: ClusterFile) -> None:
    """The shared class uses the file system; disks can be found by their tag after the cluster is deleted."""
    shared, shard = storage_classes(file, "fs-1")
    assert (shared["provisioner"], shared["parameters"]["fileSystemId"]) == ("efs.csi.aws.com", "fs-1")
    assert (shared["parameters"]["uid"], shared["parameters"]["gid"]) == ("1000", "1000")
    assert shard["parameters"]["tagSpecification_1"] == "cerebro/cluster=demo"
    assert shard["volumeBindingMode"] == "WaitForFirstConsumer"
    other = storage_classes(file, "fs-2")[0]
    assert other["metadata"]["annotations"] != shared["metadata"]["annotations"]


def test_monitoring_finds_the_monitors_of_the_platform(file: ClusterFile) -> None:
    """The monitoring watches all namespaces; the platform's monitors, rules and dashboard exist only with it."""
    found = monitoring_values(file)
    selectors = found["prometheus"]["prometheusSpec"]
    assert selectors["serviceMonitorSelectorNilUsesHelmValues"] is False
    assert selectors["ruleSelectorNilUsesHelmValues"] is False
    assert found["grafana"]["sidecar"]["dashboards"]["searchNamespace"] == "ALL"
    switches = platform_values(file)["monitoring"]
    assert switches == {part: {"enabled": True} for part in ("serviceMonitor", "rules", "dashboard")}
    without = file.model_copy(update={"install": file.install.model_copy(update={"monitoring": False})})
    assert "monitoring" not in platform_values(without)
