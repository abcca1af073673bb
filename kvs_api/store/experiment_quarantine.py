"""Quarantine of experiments with an unreadable record or log, and their restoration.

Called by views of the REST API: the controller quarantines, a person restores. Nothing here repairs or deletes
data. Workers are quarantined in `kvs_api.store.health`.
"""

from __future__ import annotations

import json

from pydantic import ValidationError

from cerebro import errors
from cerebro.contract.records import ExperimentRecord, Locator, Locators, Unreadable
from kvs_api.store import keys
from kvs_api.store.workers import WorkerStore

_UNKNOWN = Locators(train=Locator(metadata="unknown: the record cannot be read"))


class QuarantineStore(WorkerStore):
    """Changes of quarantine marks of experiments."""

    def quarantine(self, name: str, problem: Unreadable, term: int) -> None:
        """Quarantine an unreadable experiment; its runs leave the queue (`KvsClient.quarantine`)."""
        call = {
            "call": "quarantine",
            "experiment": keys.experiment(name),
            "name": name,
            "log": keys.log(name),
            "term": term,
            "problem": problem.model_dump_json(),
            "queue": keys.QUEUE,
            "cluster": keys.CLUSTER,
        }
        answer = self._run(call)
        if "missing" in answer:
            raise errors.NotFoundError(f"no experiment {name!r} in the store")

    def restore(self, name: str) -> None:
        """Release an experiment from quarantine; its log is read again (`KvsClient.restore`)."""
        answer = self._run(
            {
                "call": "restore",
                "experiment": keys.experiment(name),
                "name": name,
                "log": keys.log(name),
                "queue": keys.QUEUE,
                "deleting": keys.DELETING,
                "cluster": keys.CLUSTER,
            }
        )
        if "missing" in answer:
            raise errors.NotFoundError(f"no experiment {name!r} in the store")
        if "readable" in answer:
            raise errors.ConflictError(
                f"experiment {name!r} was not quarantined: there is nothing to restore"
            )


def record_of(name: str, content: bytes, created: float) -> tuple[ExperimentRecord, Unreadable | None]:
    """Parse a stored record. If it is unreadable, return one with only its name and creation time, and the reason."""
    try:
        return ExperimentRecord.model_validate_json(content), None
    except ValidationError as cause:
        why = errors.validation_summary(cause.errors())
        return ExperimentRecord(name=name, locators=_UNKNOWN, created=created), Unreadable(seq=0, reason=why)


def checked(number: int, text: str) -> str:
    """Return the text of a log entry, or an event of unknown type if the text is no JSON object."""
    try:
        if isinstance(json.loads(text), dict):
            return text
    except ValueError:
        pass
    return json.dumps({"seq": number, "type": "no JSON object"})
