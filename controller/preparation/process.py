"""`controller.preparation.preparation` in a separate process: ``python -m controller.preparation.process``.

Arrow and metadata take memory that a long-lived process never frees: 30 MB before the first row, and the
controller has 150 MB. So each preparation is one process. A thread waits for it
(`controller.preparation.plan_maker`), and the controller continues. A request is JSON on standard input, the
answer JSON on standard output; errors keep their type.
"""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cerebro import errors
from cerebro.contract.base import Contract
from cerebro.contract.records import ExperimentRecord
from cerebro.contract.runs import EtlPlan, EtlRequest
from cerebro.errors import CerebroError, MetadataError
from cerebro.runtime.isolation.parent_death import with_parent_death_signal
from cerebro.runtime.volumes import Volumes
from controller.storage.scratch import remove_abandoned

_END_S = 1.0
"""Seconds to wait for a killed process."""


class _Question(Contract):
    """The arguments of `prepare_etl`."""

    record: ExperimentRecord
    known: dict[str, EtlPlan]
    request: EtlRequest
    weights: dict[str, float]
    volumes: dict[str, Path]


class _Answer(Contract):
    """A plan, or an error: the name of a class in `cerebro.errors`, or "" for others; of a volume, with the path."""

    plan: EtlPlan | None = None
    error: str = ""
    message: str = ""
    path: str = ""


class Preparation:
    """`controller.preparation.preparation.prepare_etl` in a separate process, which starts at once.

    Create it in a thread that lives as long as this process. Different threads may call `plan` and `end`.
    """

    def __init__(
        self,
        record: ExperimentRecord,
        known: Mapping[str, EtlPlan],
        request: EtlRequest,
        weights: Mapping[str, float],
        volumes: Volumes,
    ) -> None:
        self._question = _Question(
            record=record,
            known=dict(known),
            request=request,
            weights=dict(weights),
            volumes=vars(volumes),
        )
        self._scratch = volumes.scratch
        command = with_parent_death_signal([sys.executable, "-P", "-m", "controller.preparation.process"])
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def plan(self) -> EtlPlan:
        """Wait for the process. Call it once.

        Raises:
            LocatorError, MetadataError: the metadata is unusable, or the process was killed, for example for
                lack of memory.
            StorageFullError, VolumeError: a volume is full or unavailable.
            RuntimeError: an unexpected error; its traceback is on standard error.
        """
        with self._process as process:
            said, _ = process.communicate(self._question.model_dump_json().encode())
        if process.returncode:
            remove_abandoned(self._scratch)
            raise MetadataError(
                f"the process that cuts the metadata ended with exit code {process.returncode}. -9 means that it ran "
                "out of memory: give the controller more (controller.resources.limits.memory on Kubernetes), or give "
                "fewer rows"
            )
        answer = _Answer.model_validate_json(said)
        if answer.plan is not None:
            return answer.plan
        kind: Any = getattr(errors, answer.error, RuntimeError) if answer.error else RuntimeError
        raise kind.at(answer.message, answer.path) if answer.path else kind(answer.message)

    def end(self) -> None:
        """Kill the process if it runs: it writes nothing more. `plan` removes its files."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # a hung volume blocks it: its later writes are refused
            self._process.wait(_END_S)


def _answered(content: bytes) -> _Answer:
    from controller.preparation import preparation

    question = _Question.model_validate_json(content)
    try:
        plan = preparation.prepare_etl(
            question.record, question.known, question.request, question.weights, Volumes(**question.volumes)
        )
    except CerebroError as error:
        return _Answer(error=type(error).__name__, message=str(error), path=getattr(error, "path", ""))
    except Exception as error:  # noqa: BLE001 - metadata is what users give: told to the caller, and in full in its log
        traceback.print_exc()
        return _Answer(message=f"{type(error).__name__}: {error}")
    return _Answer(plan=plan)


def main() -> None:
    """Answer one request."""
    answer = _answered(sys.stdin.buffer.read())
    sys.stdout.write(answer.model_dump_json())


if __name__ == "__main__":
    main()
