"""Errors in a cluster file name the line and the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.cloud.clusterfile import ClusterFile, read
from cerebro.errors import ClusterFileError
from cerebro.runtime import checked_yaml

GOOD = """\
name: demo
region: us-east-1
kubernetes: "1.34"
controller:
  instance_type: m6i.xlarge
workers:
  - name: gpu
    instance_type: g5.xlarge
    count: 2
    gpus: 1
  - name: more
    instance_type: g4dn.xlarge
    count: 1
    gpus: 1
images:
  registry: example.com
"""


def refusal(text: str) -> str:
    """Return the error for a file."""
    with pytest.raises(ClusterFileError) as refused:
        checked_yaml.parse(text, "c.yaml", ClusterFile, ClusterFileError)
    return str(refused.value)


def test_a_good_file_is_read() -> None:
    """Missing fields get defaults."""
    file = checked_yaml.parse(GOOD, "c.yaml", ClusterFile, ClusterFileError)
    assert (file.num_workers, file.gpus, file.storage.shards_gib) == (3, 1, 100)
    assert file.instance_types == ["g4dn.xlarge", "g5.xlarge", "m6i.xlarge"]


@pytest.mark.parametrize("name", ["cluster.yaml", "cluster-gpu.yaml"])
def test_the_example_files_are_valid(name: str) -> None:
    """Only the account's number must be changed."""
    read(Path(__file__).parents[2] / "infra" / "eksctl" / name)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("count: 2", "cuont: 2", "c.yaml:9: workers[0].cuont: no such field; did you mean count?"),
        ("region:", "regoin:", "c.yaml:2: regoin: no such field; did you mean region?"),
        ("  registry:", "  registri:", "c.yaml:16: images.registri: no such field; did you mean registry?"),
        ("name: demo", "name: demo\ncolour: red", "c.yaml:2: colour: no such field; there are name, region"),
        ("name: demo\n", "", "c.yaml:1: name: is missing"),
        ("    count: 1\n", "", "c.yaml:11: workers[1].count: is missing"),
        ("count: 2", "count: 0", "c.yaml:9: workers[0].count: input should be greater than or equal to 1, not 0"),
        ("count: 2", "count: two", "c.yaml:9: workers[0].count: input should be a valid integer"),
        ("count: 2", 'count: "2"', "c.yaml:9: workers[0].count: input should be a valid integer"),
        ('"1.34"', "1.34", 'c.yaml:3: kubernetes: write it in quotes, such as "1.34"'),
        ('"1.34"', '"1.34.1"', "c.yaml:3: kubernetes: must be a minor version"),
        ("us-east-1", "useast1", "c.yaml:2: region: string should match pattern"),
        ("m6i.xlarge", "m6i.xlarge\n  spot: true", "c.yaml:6: controller.spot: no such field"),
        ("name: more", "name: gpu", "c.yaml:6: workers: two groups are named 'gpu'"),
        ("name: more", "name: control", "c.yaml:6: workers: the name 'control' is the control plane's"),
        ("count: 1\n    gpus: 1", "count: 1", "all groups must have the same `gpus`"),
        ("name: demo", "name: Demo", "c.yaml:1: name: string should match pattern"),
        ("name: demo", "name: demo\nname: two", "c.yaml:2: name: given twice"),
        ("name: demo", "name: demo\nzones: [us-east-1a]", "c.yaml:2: zones: list should have at least 2 items"),
        ("name: demo", 'name: demo\ntags: {"aws:x": y}', "c.yaml:2: tags: the key 'aws:x' is reserved"),
        ("name: demo", "name: demo\ns3: [Bad_Bucket]", "c.yaml:2: s3[0]: string should match pattern"),
        ("name: demo", "install: {monitorng: on}", "c.yaml:1: install.monitorng: no such field; did you mean"),
        ("name: demo", "name: [demo", "c.yaml: is no YAML"),
        ("count: 2", "count: 2\n    fallbacks: [g6.xlarge, g5.xlarge]", "workers[0]: names g5.xlarge twice"),
        ("count: 2", "count: 2\n    fallbacks: g6.xlarge", "workers[0].fallbacks: input should be a valid list"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_line_and_field(old: str, new: str, said: str) -> None:
    assert said in refusal(GOOD.replace(old, new, 1))


def test_all_mistakes_are_reported_together() -> None:
    said = refusal(GOOD.replace("count: 2", "cuont: 2").replace("us-east-1", "nowhere"))
    assert len(said.splitlines()) == 3  # the region, the unknown field, the missing field


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """With the path of an example."""
    with pytest.raises(ClusterFileError, match=r"No such file .*; infra/eksctl/cluster\.yaml"):
        read(tmp_path / "none.yaml")
