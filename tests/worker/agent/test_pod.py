"""A worker reports the pod that it runs in."""

from __future__ import annotations

import pytest

from cerebro.contract.records import PodRef
from cerebro.errors import ClusterError
from cerebro.worker.agent.settings import Settings

GIVEN = {"CEREBRO_TOKEN": "t", "CEREBRO_WORKER": "w-0-etl"}
POD = {"CEREBRO_POD": "w-0", "CEREBRO_POD_UID": "1-2-3", "CEREBRO_CONTAINER": "etl"}


def test_a_worker_registers_its_pod() -> None:
    """The pod, its uid and the container let a cluster manager find this process."""
    settings = Settings.from_environment(GIVEN | POD)
    assert settings.pod == PodRef(name="w-0", uid="1-2-3", container="etl")


@pytest.mark.parametrize("missing", sorted(POD))
def test_incomplete_pod_variables_are_an_error(missing: str) -> None:
    """The error at startup names the missing variable."""
    with pytest.raises(ClusterError, match=f"{missing} not set"):
        Settings.from_environment(GIVEN | {name: value for name, value in POD.items() if name != missing})
