"""Credentials, region and Kubernetes version."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from cerebro.cloud.aws import Aws, AwsError, NoCredentialsError
from cerebro.cloud.clusterfile import ClusterFile
from cerebro.cloud.preflight.finding import Finding, fail, ok, unknown, warn

SIGN_IN = "sign in: `aws configure` (keys) or `aws sso login`, or set AWS_PROFILE"


def check_region(aws: Aws, file: ClusterFile) -> Finding:
    """Whether the region exists; known without asking AWS, except for regions newer than the installed botocore."""
    known = aws.regions_known_offline()
    if file.region in known:
        return ok("region", file.region)
    close = difflib.get_close_matches(file.region, known, n=1)
    mend = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    return fail("region", f"{file.region} is no region with EKS that boto3 knows", mend)


def check_credentials(aws: Aws) -> Finding:
    """Whether AWS takes the credentials, and whose they are."""
    if not aws.has_credentials:
        return fail("credentials", "there are none for AWS", SIGN_IN)
    try:
        caller = aws.look("sts", "get_caller_identity")
    except NoCredentialsError as problem:
        return fail("credentials", f"AWS does not take them ({problem})", SIGN_IN)
    except AwsError as problem:
        return fail("credentials", f"AWS cannot be asked ({problem})", "look at the network and AWS_PROFILE")
    return ok("credentials", f"account {caller['Account']}, {caller['Arn']}")


def check_kubernetes(aws: Aws, file: ClusterFile) -> Iterator[Finding]:
    """Whether EKS offers the version, and whether it costs extra."""
    try:
        found = list(aws.pages("eks", "describe_cluster_versions", "clusterVersions", includeAll=True))
    except AwsError as problem:
        yield unknown("kubernetes", f"versions cannot be looked up ({problem})")
        return
    offered = {
        version["clusterVersion"]: str(version.get("versionStatus") or version.get("status", "")).upper()
        for version in found
    }
    usable = sorted((name for name, state in offered.items() if state != "UNSUPPORTED"), key=_minor)
    if file.kubernetes not in usable:
        yield fail("kubernetes", f"EKS does not offer {file.kubernetes}", f"there are {', '.join(usable)}")
    elif offered[file.kubernetes] == "EXTENDED_SUPPORT":
        yield warn(
            "kubernetes",
            f"{file.kubernetes} is in extended support, which costs six times as much per hour",
            f"newest: {usable[-1]}",
        )
    else:
        yield ok("kubernetes", file.kubernetes)


def _minor(version: str) -> int:
    return int(version.partition(".")[2])
