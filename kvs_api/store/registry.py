"""Registered models in the store: version numbers, outcomes of copying, aliases.

Called by views of the REST API: clients register models and move aliases, the controller copies files and reports
the outcome. No file is read or copied here.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from cerebro import errors
from cerebro.contract.records import ExperimentRecord
from cerebro.contract.stored.registry import (
    AliasRequest,
    ModelVersion,
    RegisteredModel,
    Registration,
    UnreadableVersion,
    VersionOutcome,
)
from cerebro.contract.texts import did_you_mean
from kvs_api.logs.segment_store import SegmentStore
from kvs_api.store import keys
from kvs_api.store.database import text, translated

_VERSION, _ALIAS = "version:", "alias:"


class RegistryStore(SegmentStore):
    """Registered models, one hash each."""

    def register_model(self, name: str, registration: Registration, once: str) -> ModelVersion:
        """Add a version and queue its files for copying. Calls with equal `once` add one version.

        Raises:
            NotFoundError: the experiment does not exist.
        """
        key = keys.experiment(registration.experiment)
        with translated():
            content: Any = self._redis.get(key)
            seconds, micros = self._redis.time()
        if content is None:
            raise errors.NotFoundError(f"no experiment {registration.experiment!r} in the store")
        version = ModelVersion(
            name=name,
            version=1,
            created=seconds + micros / 1e6,
            source=registration,
            experiment=ExperimentRecord.model_validate_json(content),
        )
        answer = self._run(
            {
                "call": "register_model",
                "experiment": key,
                "registry": keys.REGISTRY,
                "registering": keys.REGISTERING,
                "registered": keys.registered(name),
                "name": name,
                "once": once,
                "record": _content(version),
            }
        )
        if "missing" in answer:
            raise errors.NotFoundError(f"no experiment {registration.experiment!r} in the store")
        return self._version(name, answer["version"])[1]

    def settle_version(self, name: str, outcome: VersionOutcome) -> ModelVersion:
        """Record the outcome of copying a version's files. The first outcome counts.

        Raises:
            NotFoundError: the version does not exist.
        """
        while True:
            stored, known = self._version(name, outcome.version)
            if known.state != "copying":
                return known
            state = "failed" if outcome.error else "ready"
            changes = outcome.model_dump(exclude={"version"}) | {"state": state}
            settled = ModelVersion.model_validate(known.model_dump() | changes)
            answer = self._run(
                {
                    "call": "settle_version",
                    "registered": keys.registered(name),
                    "registering": keys.REGISTERING,
                    "name": name,
                    "version": outcome.version,
                    "expected": stored,
                    "record": _content(settled),
                }
            )
            if "settled" in answer:
                return settled

    def move_alias(self, name: str, request: AliasRequest) -> RegisteredModel:
        """Point an alias to another version, or remove it.

        Raises:
            NotFoundError: the model, version or alias does not exist.
            ConflictError: the version is not ready.
        """
        call: dict[str, Any] = {
            "call": "move_alias",
            "registered": keys.registered(name),
            "alias": request.alias,
        }
        if request.version is not None:
            record, version = self._version(name, request.version)
            if version.state != "ready":
                why = version.error or "its files are being copied"
                raise errors.ConflictError(f"version {version.version} of {name} is not ready: {why}")
            call |= {"version": request.version, "record": record}
        answer = self._run(call)
        if "moved" not in answer:
            raise errors.NotFoundError(_absent(self.registered_model(name), f"alias {request.alias!r}"))
        return self.registered_model(name)

    def registered_model(self, name: str) -> RegisteredModel:
        """Return a registered model.

        Raises:
            NotFoundError: the name is not registered.
        """
        with translated():
            fields: Any = self._redis.hgetall(keys.registered(name))
        if not fields:
            names = sorted(self._names())
            hint = did_you_mean(name, names) or f"; registered are: {', '.join(names[:10]) or 'none yet'}"
            raise errors.NotFoundError(f"no model is registered as {name!r}{hint}")
        return _model(name, fields)

    def registry(self, *, copying: bool = False) -> tuple[RegisteredModel, ...]:
        """Return all registered models, by name; with `copying`, only versions with files to copy."""
        if copying:
            with translated():
                found: Any = self._redis.smembers(keys.REGISTERING)
            pairs = sorted(text(entry).split("/") for entry in found)
            pending = [(name, self._pending(name, int(version))) for name, version in pairs]
            return tuple(
                RegisteredModel(name=name, versions=(version,)) for name, version in pending if version
            )
        names = sorted(self._names())
        with translated():
            pipe = self._redis.pipeline(transaction=False)
            for name in names:
                pipe.hgetall(keys.registered(name))
            answers: Any = pipe.execute()
        return tuple(_model(name, fields) for name, fields in zip(names, answers, strict=True))

    def _pending(self, name: str, version: int) -> ModelVersion | None:
        """Return a version to copy; `None` for an unreadable one, so that copying of other versions continues."""
        try:
            return self._version(name, version)[1]
        except errors.UnreadableError:
            return None

    def _names(self) -> list[str]:
        with translated():
            found: Any = self._redis.smembers(keys.REGISTRY)
        return [text(name) for name in found]

    def _version(self, name: str, version: int) -> tuple[str, ModelVersion]:
        """Return the stored text and its parsed version."""
        with translated():
            content: Any = self._redis.hget(keys.registered(name), f"{_VERSION}{version}")
        if content is None:
            raise errors.NotFoundError(_absent(self.registered_model(name), f"version {version}"))
        return text(content), _read(name, version, content)


def _absent(model: RegisteredModel, what: str) -> str:
    newest = max([v.version for v in model.versions] + [v.version for v in model.unreadable])
    versions = f"versions 1 to {newest}" if newest > 1 else "version 1"
    aliases = ", ".join(sorted(model.aliases)) or "none"
    return f"{model.name} has no {what}: it has {versions}, and of aliases {aliases}"


def _content(version: ModelVersion) -> str:
    # The storage location determines name and number.
    return version.model_dump_json(exclude={"name", "version"})


def _read(name: str, version: int, content: bytes) -> ModelVersion:
    try:
        return ModelVersion.model_validate({**json.loads(content), "name": name, "version": version})
    except (ValueError, TypeError) as cause:  # also for text that is no JSON object
        found = (
            errors.validation_summary(cause.errors())
            if isinstance(cause, ValidationError)
            else "it is no record"
        )
        raise errors.UnreadableError(
            f"version {version} of the registered model {name!r} cannot be read ({found}): "
            "it is damaged, or a newer version of Cerebro wrote it. Install that version"
        ) from cause


def _model(name: str, fields: dict[bytes, bytes]) -> RegisteredModel:
    contents = {text(field): content for field, content in fields.items()}
    numbers = sorted(int(field.removeprefix(_VERSION)) for field in contents if field.startswith(_VERSION))
    versions: list[ModelVersion] = []
    unreadable: list[UnreadableVersion] = []
    for number in numbers:
        try:
            versions.append(_read(name, number, contents[f"{_VERSION}{number}"]))
        except errors.UnreadableError as error:
            unreadable.append(UnreadableVersion(version=number, reason=str(error)))
    return RegisteredModel(
        name=name,
        versions=tuple(versions),
        unreadable=tuple(unreadable),
        aliases={
            field.removeprefix(_ALIAS): int(content)
            for field, content in contents.items()
            if field.startswith(_ALIAS)
        },
    )
