"""`RegistryExport`: copies registered models to MLflow's model registry, each version once, for ``cerebro export``.

A version is created in one request with its stable tag `ID`. After a failed request the export searches for that tag
before it tries again. MLflow numbers the versions itself, because others register versions too. Each version refers to
an MLflow run: the run of its model's page if it was exported, otherwise a run created here.

A tag of the registered model lists all exported versions, so a version deleted in MLflow is not created again. The
export changes and removes only aliases that it has set.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from cerebro.contract.stored.registry import ModelVersion, RegisteredModel
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.errors import CerebroError, ExportError
from cerebro.exports.mlflow_export import CHECKPOINT, ID, get_or_create_experiment, pairs
from cerebro.exports.mlflow_server import MAX_PARAMS, MlflowServer
from cerebro.exports.projection import PageKey, Projection
from cerebro.exports.registry_values import (
    alias_changes,
    file_tags_of,
    folder_of,
    identity,
    params_of,
    tags_of,
)

log = logging.getLogger(__name__)

PUSHED, ALIASES = "cerebro.pushed.", "cerebro.aliases"
"""Tags of a model: prefix for the MLflow number of each exported version; aliases set by the export."""
_PROXIED = "mlflow-artifacts:"
_PAGE = 200


@dataclass
class _MlflowModel:
    """State of a registered model in MLflow."""

    tags: dict[str, str]
    aliases: dict[str, str]
    versions: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`ID` -> version, for versions created by the export."""


class RegistryExport:
    """Sends registered models to MLflow; not thread-safe.

    Args:
        checkpoint: returns the file of a checkpoint; `None` sends no files.
    """

    def __init__(
        self, server: MlflowServer, checkpoint: Callable[[CheckpointRef], Path] | None = None
    ) -> None:
        self._server, self._checkpoint = server, checkpoint
        self._pushed: dict[str, RegisteredModel] = {}
        """Models as last pushed completely."""
        self.sent = 0
        """Number of versions created."""

    def push(self, models: Iterable[RegisteredModel]) -> None:
        """Create all versions that are ready and set all aliases.

        Raises:
            TrackerUnavailableError, ExportError: the push is incomplete. Pushing again is safe.
        """
        for model in models:
            if self._pushed.get(model.name) != model and any(v.state == "ready" for v in model.versions):
                self._push(model)
                self._pushed[model.name] = model

    def _push(self, model: RegisteredModel) -> None:
        current = self._server.retry(lambda is_retry: self._get_or_create_model(model.name, is_retry))
        current.versions = self._versions(model.name)
        numbers: dict[int, str] = {}
        for version in model.versions:
            if version.state != "ready":
                continue
            of = identity(version)
            known = current.versions.get(of)
            if known is None and PUSHED + of in current.tags:
                log.info(
                    "version %d of %s was deleted in MLflow and is not exported again",
                    version.version,
                    model.name,
                )
                continue
            if known is None:
                known = self._create_version(version)
            number = str(known["version"])
            if current.tags.get(PUSHED + of) != number:
                self._server.post("registered-models/set-tag", name=model.name, key=PUSHED + of, value=number)
            self._send_checkpoint(version, known)
            numbers[version.version] = number
        self._move_aliases(model, current, numbers)

    # --- models and versions ---------------------------------------------------------------------

    def _get_or_create_model(self, name: str, is_retry: bool) -> _MlflowModel:
        try:
            found = self._server.call("GET", f"registered-models/get?name={name}")["registered_model"]
        except ExportError as error:
            if error.code != "RESOURCE_DOES_NOT_EXIST":
                raise
            try:
                found = self._server.call("POST", "registered-models/create", {"name": name})[
                    "registered_model"
                ]
            except ExportError as taken:
                if taken.code != "RESOURCE_ALREADY_EXISTS" or is_retry:
                    raise
                return self._get_or_create_model(name, True)
        aliases = {each["alias"]: str(each["version"]) for each in found.get("aliases", ())}
        return _MlflowModel(tags=_tags(found), aliases=aliases)

    def _versions(self, name: str) -> dict[str, dict[str, Any]]:
        found, page = dict[str, dict[str, Any]](), ""
        while True:
            query = {"filter": f"name='{name}'", "max_results": str(_PAGE)}
            answer = self._server.get(
                "model-versions/search", **query, **({"page_token": page} if page else {})
            )
            for each in answer.get("model_versions", ()):
                if of := _tags(each).get(ID):
                    found.setdefault(of, each)
            page = answer.get("next_page_token", "")
            if not page:
                return found

    def _create_version(self, version: ModelVersion) -> dict[str, Any]:
        run_id, artifacts = self._run(version)
        tags = {ID: identity(version), **tags_of(version)}
        if self._checkpoint is not None:
            self._upload(version, artifacts)
            tags |= file_tags_of(version)
        source = version.source
        body = {
            "name": version.name,
            "source": f"{artifacts.rstrip('/')}/{folder_of(version)}",
            "run_id": run_id,
            "tags": pairs(tags),
            "description": f"{version.name}/{version.version} of Cerebro: {source.model} of {source.run} of "
            f"{source.experiment}, epoch {source.epoch}",
        }

        def create(is_retry: bool) -> dict[str, Any]:
            found = self._versions(version.name).get(identity(version)) if is_retry else None
            if found is None:
                found = dict(self._server.call("POST", "model-versions/create", body)["model_version"])
                self.sent += 1
            return found

        return self._server.retry(create)

    # --- the run that a version refers to --------------------------------------------------------

    def _run(self, version: ModelVersion) -> tuple[str, str]:
        """Return the id and the artifact location of the version's run."""
        record, source = version.experiment, version.source
        experiment = self._server.retry(
            lambda is_retry: get_or_create_experiment(self._server, record.name, is_retry)
        )
        exported = Projection(record).id_of(PageKey(source.run, source.model))
        if found := self._found_run(experiment, exported):
            return found
        created = self._server.retry(lambda _: self._create_run(experiment, version))
        params = pairs(params_of(version))
        for begin in range(0, len(params), MAX_PARAMS):
            self._server.post("runs/log-batch", run_id=created[0], params=params[begin : begin + MAX_PARAMS])
        ended = round(version.created * 1000)
        self._server.post("runs/update", run_id=created[0], status="FINISHED", end_time=ended)
        return created

    def _found_run(self, experiment: str, of: str) -> tuple[str, str] | None:
        body = {
            "experiment_ids": [experiment],
            "filter": f"tags.`{ID}` = '{of}'",
            "max_results": 1,
            "run_view_type": "ACTIVE_ONLY",
            "order_by": ["attributes.start_time ASC", "attributes.run_id ASC"],
        }
        for run in self._server.post("runs/search", **body).get("runs", ()):
            if run["info"].get("lifecycle_stage", "active") == "active":
                return run["info"]["run_id"], run["info"].get("artifact_uri", "")
        return None

    def _create_run(self, experiment: str, version: ModelVersion) -> tuple[str, str]:
        of = identity(version)
        if found := self._found_run(experiment, of):
            return found
        body = {
            "experiment_id": experiment,
            "run_name": f"{version.name}/{version.version}",
            "start_time": round(version.created * 1000),
            "tags": pairs({ID: of, **tags_of(version), "mlflow.source.name": "cerebro"}),
        }
        info = self._server.call("POST", "runs/create", body)["run"]["info"]
        return info["run_id"], info.get("artifact_uri", "")

    # --- files -----------------------------------------------------------------------------------

    def _send_checkpoint(self, version: ModelVersion, known: Mapping[str, Any]) -> None:
        """Send the file of a version that an earlier export created without it."""
        if self._checkpoint is None or _tags(known).get(CHECKPOINT):
            return
        self._upload(version, str(known["source"]).removesuffix(folder_of(version)))
        for key, value in file_tags_of(version).items():
            where = {"name": version.name, "version": str(known["version"])}
            self._server.post("model-versions/set-tag", **where, key=key, value=value)

    def _upload(self, version: ModelVersion, artifacts: str) -> None:
        assert self._checkpoint is not None
        assert version.checkpoint is not None, "it is ready"
        if not artifacts.startswith(_PROXIED):
            raise ExportError(
                f"MLflow at {self._server.address} does not take files itself: it keeps the files of this run at "
                f"{artifacts}. Start it with --serve-artifacts, or export without --checkpoints"
            )
        try:
            file = self._checkpoint(version.checkpoint)
        except CerebroError as error:
            raise ExportError(
                f"version {version.version} of {version.name} was not exported: {error}. Export without "
                "--checkpoints to register it without its file"
            ) from error
        root = artifacts.removeprefix(_PROXIED).strip("/")
        self._server.upload(f"{root}/{folder_of(version)}/model.pt", file)

    # --- aliases ---------------------------------------------------------------------------------

    def _move_aliases(
        self, model: RegisteredModel, current: _MlflowModel, numbers: Mapping[int, str]
    ) -> None:
        wanted = {alias: numbers[version] for alias, version in model.aliases.items() if version in numbers}
        for alias in [
            each for each in wanted if each == "latest" or (each[0] == "v" and each[1:].isdecimal())
        ]:
            log.warning("MLflow reserves the alias %r: it is not exported for %s", alias, model.name)
            del wanted[alias]
        ours = {each for each in current.tags.get(ALIASES, "").split(",") if each}
        changes = alias_changes(
            wanted,
            current.aliases,
            ours=ours,
            versions={str(v["version"]) for v in current.versions.values()} | set(numbers.values()),
        )
        for alias in changes.foreign:
            log.warning(
                "the alias %r of %s was set in MLflow by others and stays unchanged", alias, model.name
            )
        if changes.moved.keys() - ours:
            # Record them first: if the export is killed next, a later one knows which aliases it may have
            # set.
            ours |= changes.moved.keys()
            self._record_aliases(model.name, ours)
        for alias, version in changes.moved.items():
            self._server.post("registered-models/alias", name=model.name, alias=alias, version=version)
        for alias in changes.removed:
            self._server.retry(partial(self._remove_alias, {"name": model.name, "alias": alias}))
        if ours != wanted.keys() - set(changes.foreign):
            self._record_aliases(model.name, wanted.keys() - set(changes.foreign))

    def _remove_alias(self, body: Mapping[str, str], _is_retry: bool) -> None:
        self._server.call("DELETE", "registered-models/alias", body)

    def _record_aliases(self, name: str, aliases: Iterable[str]) -> None:
        value = ",".join(sorted(aliases))
        self._server.post("registered-models/set-tag", name=name, key=ALIASES, value=value)


def _tags(of: Mapping[str, Any]) -> dict[str, str]:
    return {tag["key"]: tag.get("value", "") for tag in of.get("tags", ())}
