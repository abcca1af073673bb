"""A stand-in for ``aws cloudformation deploy``: its checks, changes and deletions.

moto makes the resources, but lacks conditions in updates and pod identity associations, so this module has both. It
refuses what AWS refuses: an update of a failed stack, a second association, the deletion of an export in use.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import botocore.exceptions
import yaml
from moto.backends import get_backend
from moto.core.models import DEFAULT_ACCOUNT_ID

if TYPE_CHECKING:
    from tests.cloud.cloud import Cloud

Answer = tuple[int, str]
_CAN_CHANGE = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE")
_ASSOCIATION = "AWS::EKS::PodIdentityAssociation"


class Deployed:
    """The deployed stacks."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._associated: dict[str, set[str]] = {}

    def deploy(self, options: Sequence[str]) -> Answer:
        """Create or update a stack, or refuse."""
        from tests.cloud.cloud import as_tags, value

        name, template = value(options, "--stack-name"), load(Path(value(options, "--template-file")))
        assert value(options, "--capabilities") == "CAPABILITY_IAM"  # AWS requires it to create a role
        parameters = _assigned(options, "--parameter-overrides")
        assert set(parameters) == set(template["Parameters"])
        held = {key: _value(given, template, parameters) for key, given in template["Conditions"].items()}
        resources = {
            key: resource
            for key, resource in template["Resources"].items()
            if held.get(resource.pop("Condition", ""), True)
        }
        accounts = {
            resource["Properties"]["ServiceAccount"]
            for resource in resources.values()
            if resource["Type"] == _ASSOCIATION
        }
        status = self._cloud.stacks().get(name)
        if status is not None and status not in _CAN_CHANGE:
            return (
                254,
                f"An error occurred (ValidationError): {name} is in {status} state and can not be updated.",
            )
        if accounts & (self._cloud.identities - self._associated.get(name, set())):
            self._fail(name, status)
            return 255, "Failed to create/update the stack: Association already exists"
        body = {
            "Parameters": template["Parameters"],
            "Resources": {key: each for key, each in resources.items() if each["Type"] != _ASSOCIATION},
        }
        client = self._cloud.client("cloudformation")
        try:
            (client.create_stack if status is None else client.update_stack)(
                StackName=name,
                TemplateBody=json.dumps(body),
                Parameters=[
                    {"ParameterKey": key, "ParameterValue": each} for key, each in parameters.items()
                ],
                Tags=as_tags(_assigned(options, "--tags")),
                Capabilities=["CAPABILITY_IAM"],
            )
        except botocore.exceptions.ClientError as refused:
            return 255, str(refused)
        for stack in get_backend("cloudformation")[DEFAULT_ACCOUNT_ID]["us-east-1"].stacks.values():
            if stack.name == name:  # moto would keep resources that an update removed
                for removed in set(template["Resources"]) - set(body["Resources"]):
                    stack.resource_map._parsed_resources.pop(removed, None)
        self._cloud.identities -= self._associated.get(name, set())
        self._cloud.identities |= accounts
        self._associated[name] = accounts
        return 0, "Successfully created/updated stack"

    def _fail(self, name: str, status: str | None) -> None:
        if status is None:
            self._cloud.make_stack(name, "", {"cerebro/cluster": name.removeprefix("cerebro-")})
        self._cloud.set_stack(name, "ROLLBACK_COMPLETE" if status is None else "UPDATE_ROLLBACK_COMPLETE")

    def users_of(self, cluster: str) -> list[str]:
        """List the stacks that use exports of a cluster's network stack."""
        found = self._cloud.client("cloudformation").describe_stacks()["Stacks"]
        attached = {"ParameterKey": "Attached", "ParameterValue": "yes"}
        return [
            stack["StackName"]
            for stack in found
            if stack["StackName"] == f"cerebro-{cluster}" and attached in stack.get("Parameters", [])
        ]

    def let_go(self, name: str) -> bool:
        """Drop a stack's pod identity associations; return False if the stack cannot be deleted."""
        efs = self._cloud.client("efs")
        for resource in self._cloud.client("cloudformation").describe_stack_resources(StackName=name)[
            "StackResources"
        ]:
            is_system = resource["ResourceType"] == "AWS::EFS::FileSystem"
            id_ = resource["PhysicalResourceId"]
            if is_system and efs.describe_access_points(FileSystemId=id_)["AccessPoints"]:
                return False
        self._cloud.identities -= self._associated.pop(name, set())
        return True


def _assigned(options: Sequence[str], option: str) -> dict[str, str]:
    found = {}
    for text in options[options.index(option) + 1 :]:
        if text.startswith("--"):
            break
        key, _, found[key] = text.partition("=")
    return found


def _value(given: Any, template: dict[str, Any], parameters: dict[str, str]) -> Any:
    """Evaluate the functions used in conditions."""
    if isinstance(given, list):
        return [_value(each, template, parameters) for each in given]
    if not isinstance(given, dict):
        return given
    ((function, argument),) = given.items()
    if function == "Ref":
        is_list = template["Parameters"][argument]["Type"] == "CommaDelimitedList"
        return parameters[argument].split(",") if is_list else parameters[argument]
    if function == "Condition":
        return _value(template["Conditions"][argument], template, parameters)
    known = _value(argument, template, parameters)
    match function:
        case "Fn::Equals":
            return known[0] == known[1]
        case "Fn::And":
            return all(known)
        case "Fn::Not":
            return not known[0]
        case "Fn::Join":
            return known[0].join(known[1])
    raise AssertionError(function)


def load(path: Path) -> Any:
    """Load a template and expand the short forms of functions."""
    return yaml.load(path.read_text(), Loader=_Loader)


class _Loader(yaml.SafeLoader):
    """A YAML loader with CloudFormation's tags."""


def _function(loader: _Loader, tag: str, node: yaml.Node) -> Any:
    given: Any
    if isinstance(node, yaml.ScalarNode):
        given = loader.construct_scalar(node)
        given = given.split(".") if tag == "GetAtt" else given
    else:
        assert isinstance(node, yaml.SequenceNode)
        given = loader.construct_sequence(node, deep=True)
    return {tag if tag in ("Ref", "Condition") else f"Fn::{tag}": given}


_Loader.add_multi_constructor("!", _function)
