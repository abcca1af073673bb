"""A simulated AWS account for cluster tests, based on moto.

moto keeps EC2, EFS, EKS clusters and node groups, CloudFormation, load balancers and logs. Hooks of botocore answer the
calls that moto lacks (EKS addons, identities, versions, quotas) and CloudFormation's deletions; `deploying` implements
`aws cloudformation deploy`. A `Fault` breaks one changing call of an executable, before or after its effect.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import boto3
import botocore.exceptions
from botocore import xform_name
from moto.backends import get_backend
from moto.core.models import DEFAULT_ACCOUNT_ID

from cerebro.cloud.names import STACK_TAG
from tests.cloud.deploying import Deployed
from tests.cloud.kube import FakeKube, words
from tests.cloud.standins import Answer

REGION = "us-east-1"
VERSIONS = {
    "1.33": "STANDARD_SUPPORT",
    "1.34": "STANDARD_SUPPORT",
    "1.31": "EXTENDED_SUPPORT",
    "1.30": "UNSUPPORTED",
}
_READING = ("Describe", "List", "Get")
_OFFERS = ("DescribeInstanceTypes", "DescribeInstanceTypeOfferings", "DescribeAvailabilityZones")
"""Calls about Amazon's offers, independent of the account: moto searches a thousand instance types for each answer."""


class BrokenError(Exception):
    """Raised by a fault; the executable prints the text."""


@dataclass
class Fault:
    """Breaks the `at`-th changing operation (from 0), once."""

    at: int
    after_effect: bool
    has_struck: bool = False


@dataclass
class Cloud:
    """The account. Create it inside `moto.mock_aws()`."""

    fault: Fault | None = None
    eksctl_stops_after: int | None = None
    """Let eksctl fail once, after this part:

    0 network, 1 control plane, 2 network addons, 3 the control group, 4 a worker group that failed, 5 all groups, 6 the
    other addons.
    """
    fails_at_first: set[str] = field(default_factory=set)
    """Changing operations that fail without effect at their first attempt."""
    changes: list[str] = field(default_factory=list)
    """Every changing operation, in order."""
    calls: list[list[str]] = field(default_factory=list)
    """Every call of an executable."""
    addons: dict[str, str] = field(default_factory=dict)
    identities: set[str] = field(default_factory=set)
    quotas: dict[str, float] = field(default_factory=dict)
    ticks: list[Callable[[], None]] = field(default_factory=list)
    """Callbacks, one per wait of the code under test, in order."""

    def __post_init__(self) -> None:
        self.kube = FakeKube(self)
        self.deployed = Deployed(self)

    # --- for the code under test ---

    def session(self) -> boto3.Session:
        """Return a session for this account with its faults."""
        session = _session("test")
        session.cloud = self
        return session

    def wait(self, _: float) -> None:
        """Advance time and run due callbacks."""
        if self.ticks:
            self.ticks.pop(0)()

    def execute(self, arguments: Sequence[str]) -> Answer:
        """Run an executable; return its status and output."""
        self.calls.append(list(arguments))
        name, *rest = arguments
        handler = {
            "eksctl": self._eksctl,
            "kubectl": self.kube.kubectl,
            "helm": self.kube.helm,
            "aws": self._aws,
        }[name]
        is_change = not (self.kube.is_read_only(name, rest))
        try:
            if not is_change:
                return handler(rest)
            number = self._begin(" ".join([name, *words(rest)[:2]]))
            self._strike(number, after_effect=False)
            answer = handler(rest)
            self._strike(number, after_effect=True)
        except BrokenError as broken:
            return 1, f"Error: {broken}"
        return answer

    # --- faults ---

    def made(self, part: int) -> None:
        """Record that eksctl has made a part, and stop if requested."""
        if self.eksctl_stops_after == part:
            self.eksctl_stops_after = None
            raise BrokenError("failed to create what the file names")

    def _begin(self, what: str) -> int:
        self.changes.append(what)
        return len(self.changes) - 1

    def _strike(self, number: int, *, after_effect: bool) -> None:
        if not after_effect and self.changes[number] in self.fails_at_first:
            self.fails_at_first.remove(self.changes[number])
            raise BrokenError("the network is down")
        fault = self.fault
        if fault is None or fault.has_struck:
            return
        if (fault.at, fault.after_effect) == (number, after_effect):
            fault.has_struck = True
            raise BrokenError("the network is down")

    def before(self, model: Any, params: Any) -> Any:
        """boto3 must only read: changes go through executables, which a user can see and repeat."""
        assert model.name.startswith(_READING), model.name
        body = params["body"]
        given = json.loads(body) if isinstance(body, bytes | str) and body[:1] in (b"{", "{") else body
        answer = self._answer(model.name, params, given)
        if answer is None:
            return None
        status = 200 if "Error" not in answer else 400
        return _Http(status), {**answer, "ResponseMetadata": {"HTTPStatusCode": status}}

    # --- what moto lacks ---

    def _answer(self, operation: str, params: Any, given: Any) -> dict[str, Any] | None:
        path = params.get("url_path", "")
        match operation:
            case "ListAddons":
                return {"addons": sorted(self.addons)}
            case "DescribeAddon":
                name = path.rsplit("/", 1)[1]
                if name not in self.addons:
                    return {"Error": {"Code": "ResourceNotFoundException", "Message": f"No addon: {name}"}}
                return {"addon": {"addonName": name, "status": self.addons[name]}}
            case "DescribeClusterVersions":
                versions = [
                    {"clusterVersion": name, "versionStatus": state} for name, state in VERSIONS.items()
                ]
                return {"clusterVersions": versions}
            case "GetServiceQuota":
                return {"Quota": {"Value": self.quotas.get(given["QuotaCode"], 64.0)}}
        return None

    # --- what eksctl and CloudFormation do ---

    def client(self, service: str) -> Any:
        """Make a client without faults, for tests and stand-ins."""
        return _session("own").client(service)

    def make_stack(
        self,
        name: str,
        cluster: str,
        tags: dict[str, str],
        resources: dict[str, Any] | None = None,
        exported: dict[str, Any] | None = None,
    ) -> None:
        """Create a stack as eksctl does; an SNS topic replaces resources that moto's CloudFormation lacks."""
        if name in self.stacks():
            raise BrokenError(
                f"creating CloudFormation stack {name!r}: AlreadyExistsException: Stack [{name}] already exists"
            )
        outputs = {
            key: {"Value": value, "Export": {"Name": f"{name}::{key}"}}
            for key, value in (exported or {}).items()
        }
        template = {"Resources": resources or {"Topic": {"Type": "AWS::SNS::Topic"}}, "Outputs": outputs}
        both = {**tags, STACK_TAG: cluster} if cluster else tags
        self.client("cloudformation").create_stack(
            StackName=name, TemplateBody=json.dumps(template), Tags=as_tags(both)
        )

    def stacks(self) -> dict[str, str]:
        """Return status by stack name."""
        return {
            stack["StackName"]: stack["StackStatus"]
            for stack in self.client("cloudformation").describe_stacks()["Stacks"]
        }

    def set_stack(self, name: str, status: str, reason: str = "") -> None:
        """Set a stack's status."""
        for stack in get_backend("cloudformation")[DEFAULT_ACCOUNT_ID][REGION].stacks.values():
            if stack.name == name:
                stack.status = status

    def delete_stack(self, name: str) -> None:
        """Delete a stack with its resources; a network in use fails, as on AWS."""
        if name not in self.stacks():
            return
        if name.endswith("-cluster"):
            cluster = name.removeprefix("eksctl-").removesuffix("-cluster")
            if users := self.deployed.users_of(cluster):
                reason = f"Export {name}::VPC cannot be deleted as it is in use by {users}"
                self.set_stack(name, "DELETE_FAILED", reason)
                return
            self.drop_cluster(cluster)
        elif "-nodegroup-" in name:
            cluster, _, group = name.removeprefix("eksctl-").partition("-nodegroup-")
            self._drop_group(cluster, group)
        elif not self.deployed.let_go(name):
            self.set_stack(name, "DELETE_FAILED", "the file system has access points")
            return
        self.client("cloudformation").delete_stack(StackName=name)

    def drop_cluster(self, name: str) -> None:
        """Delete a cluster with its nodes, its gateway and its address; the network stays."""
        eks, ec2 = self.client("eks"), self.client("ec2")
        if name in eks.list_clusters()["clusters"]:
            for group in eks.list_nodegroups(clusterName=name)["nodegroups"]:
                self._drop_group(name, group)
            eks.delete_cluster(name=name)
        filters = [{"Name": f"tag:{STACK_TAG}", "Values": [name]}]
        for gateway in ec2.describe_nat_gateways(Filter=filters)["NatGateways"]:
            ec2.delete_nat_gateway(NatGatewayId=gateway["NatGatewayId"])
        for address in ec2.describe_addresses(Filters=filters)["Addresses"]:
            ec2.release_address(AllocationId=address["AllocationId"])
        self.addons.clear()
        self.identities.clear()
        self.kube.clear()

    def _drop_group(self, cluster: str, group: str) -> None:
        eks = self.client("eks")
        if (
            cluster in eks.list_clusters()["clusters"]
            and group in eks.list_nodegroups(clusterName=cluster)["nodegroups"]
        ):
            eks.delete_nodegroup(clusterName=cluster, nodegroupName=group)
        self.end_instances(cluster, group)

    def end_instances(self, cluster: str, group: str) -> None:
        """Terminate the nodes of a group."""
        filters = [{"Name": "tag:group", "Values": [f"{cluster}/{group}"]}]
        found = self.client("ec2").describe_instances(Filters=filters)["Reservations"]
        ids = [instance["InstanceId"] for each in found for instance in each["Instances"]]
        if ids:
            self.client("ec2").terminate_instances(InstanceIds=ids)

    def _eksctl(self, arguments: Sequence[str]) -> Answer:
        from tests.cloud.eksctl import eksctl

        return eksctl(self, arguments)

    def _aws(self, arguments: Sequence[str]) -> Answer:
        match list(arguments):
            case ["--version"]:
                return 0, "aws-cli/2.27.0 Python/3.13.3"
            case ["eks", "update-kubeconfig", *options]:
                self.kube.write_kubeconfig(value(options, "--kubeconfig"), value(options, "--name"))
                return 0, "Added new context"
            case ["cloudformation", "deploy", *options]:
                return self.deployed.deploy(options)
            case ["cloudformation", "delete-stack", *options]:
                self.delete_stack(value(options, "--stack-name"))
                return 0, ""
            case [service, operation, *options]:
                return self._call(service, operation, options)
        raise AssertionError(arguments)

    def _call(self, service: str, operation: str, options: Sequence[str]) -> Answer:
        """Handle any other operation by the options in the service's model."""
        client, method = self.client(service), operation.replace("-", "_")
        model = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[method])
        members = {
            f"--{xform_name(name, '-')}": (name, shape) for name, shape in model.input_shape.members.items()
        }
        given: dict[str, Any] = {}
        for option, text in zip(options[::2], options[1::2], strict=True):
            if option == "--region":
                assert text == REGION
                continue
            name, shape = members[option]
            if shape.type_name == "structure":  # as in minSize=0,maxSize=2
                given[name] = {
                    key: int(number) for key, _, number in (p.partition("=") for p in text.split(","))
                }
            else:
                given[name] = [text] if shape.type_name == "list" else text
        try:
            getattr(client, method)(**given)
        except botocore.exceptions.ClientError as refused:
            return 254, str(refused)
        return 0, ""

    def paid_for(self) -> list[str]:
        """List everything in the account that costs money, with any tags."""
        ec2 = self.client("ec2")
        alive = [{"Name": "instance-state-name", "Values": ["pending", "running", "stopped"]}]
        found = [each["VolumeId"] for each in ec2.describe_volumes()["Volumes"]]
        found += [each["AllocationId"] for each in ec2.describe_addresses()["Addresses"]]
        found += [
            each["NatGatewayId"]
            for each in ec2.describe_nat_gateways()["NatGateways"]
            if each["State"] != "deleted"
        ]
        for reservation in ec2.describe_instances(Filters=alive)["Reservations"]:
            found += [each["InstanceId"] for each in reservation["Instances"]]
        found += [each["FileSystemId"] for each in self.client("efs").describe_file_systems()["FileSystems"]]
        balancers = self.client("elb").describe_load_balancers()["LoadBalancerDescriptions"]
        found += [each["LoadBalancerName"] for each in balancers]
        found += self.client("eks").list_clusters()["clusters"]
        return found


class _Session(boto3.Session):  # type: ignore[misc]  # boto3 has no types
    """Caches clients, since creating one reads several MB of models.

    `cloud` sees its calls. Also caches Amazon's offers.
    """

    def __init__(self, key: str) -> None:
        super().__init__(region_name=REGION, aws_access_key_id=key, aws_secret_access_key=key)
        self.cloud: Cloud | None = None
        self._made: dict[str, Any] = {}
        self._offers: dict[str, Any] = {}
        self.events.register("before-call", self._before)
        self.events.register("after-call", self._after)

    def client(self, service_name: str, **arguments: Any) -> Any:
        if service_name not in self._made:
            self._made[service_name] = super().client(service_name, **arguments)
        return self._made[service_name]

    def _before(self, model: Any, params: Any, context: Any, **_: Any) -> Any:
        if model.name in _OFFERS:
            context["offer"] = key = json.dumps([model.name, params["body"]])
            if key in self._offers:
                return _Http(200), copy.deepcopy(self._offers[key])
        return None if self.cloud is None else self.cloud.before(model, params)

    def _after(self, parsed: Any, context: Any, **_: Any) -> None:
        if "offer" in context:
            self._offers[context["offer"]] = copy.deepcopy(parsed)


@functools.cache
def _session(key: str) -> _Session:
    return _Session(key)


class _Http:
    def __init__(self, status: int) -> None:
        self.status_code = status
        self.headers: dict[str, str] = {}


def as_tags(tags: dict[str, str]) -> list[dict[str, str]]:
    """Convert tags to the form of most AWS services."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def value(arguments: Sequence[str], option: str) -> str:
    """Return the value of an option, or an empty text."""
    return arguments[arguments.index(option) + 1] if option in arguments else ""
