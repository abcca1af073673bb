"""What MLflow's model registry is told of a registered model: a function of its versions and aliases. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Set
from typing import NamedTuple

from cerebro.contract.registry import ModelVersion
from cerebro.exports.mlflow_export import CHECKPOINT
from cerebro.exports.mlflow_server import MAX_PARAM, MAX_TAG


class AliasChanges(NamedTuple):
    """What is to be done about a model's aliases there.

    Attributes:
        moved: alias -> version there. removed: aliases. foreign: those that others have set, which stay.
    """

    moved: dict[str, str]
    removed: tuple[str, ...]
    foreign: tuple[str, ...]


def alias_changes(
    wanted: Mapping[str, str], there: Mapping[str, str], *, ours: Set[str], versions: Set[str]
) -> AliasChanges:
    """Pure.

    Args:
        wanted: alias -> version there, as we have them.
        there: the same, as MLflow has them.
        ours: aliases that were set from here, or were about to be.
        versions: there, of ours.
    """
    foreign = tuple(
        sorted(each for each in wanted if each in there and each not in ours and there[each] not in versions)
    )
    moved = {
        alias: version
        for alias, version in wanted.items()
        if alias not in foreign and there.get(alias) != version
    }
    removed = tuple(sorted(each for each in ours - wanted.keys() if there.get(each) in versions))
    return AliasChanges(moved, removed, foreign)


def identity(version: ModelVersion) -> str:
    """The same for the same version at any time, and for no other one, of another cluster neither."""
    of = version.experiment
    text = f"registry/{version.name}/{version.version}@{version.created:.6f}/{of.name}@{of.created:.6f}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def folder_of(version: ModelVersion) -> str:
    """Where its file is, below the artifacts of the run that it refers to."""
    return f"registered/{version.name}/v{version.version}"


def tags_of(version: ModelVersion) -> dict[str, str]:
    """What a version's tags say of it."""
    source = version.source
    told = {
        "cerebro.version": f"{version.name}/{version.version}",
        "cerebro.experiment_name": source.experiment,
        "cerebro.run": source.run,
        "cerebro.model": source.model,
        "cerebro.epoch": str(source.epoch),
        "cerebro.metric": source.metric,
        "cerebro.value": "" if source.value is None else f"{source.value:.6g}",
        "cerebro.metrics": json.dumps(source.metrics, sort_keys=True),
        "cerebro.hyperparams": json.dumps(source.hyperparams, sort_keys=True, ensure_ascii=False),
        "cerebro.dataset": source.dataset,
        "cerebro.code": source.code,
        "cerebro.author": source.author,
    }
    return {name: value[:MAX_TAG] for name, value in told.items() if value}


def file_tags_of(version: ModelVersion) -> dict[str, str]:
    """What they say once its file is there."""
    assert version.checkpoint is not None, "it is ready"
    return {CHECKPOINT: version.checkpoint.name, f"{CHECKPOINT}.checksum": version.checkpoint.checksum}


def params_of(version: ModelVersion) -> dict[str, str]:
    """Its hyper-parameters, as far as MLflow takes their names; the tag with all of them has the others."""
    given = {name: _text(value)[:MAX_PARAM] for name, value in version.source.hyperparams.items()}
    return {name: value for name, value in given.items() if _is_plain(name)}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _is_plain(name: str) -> bool:
    """Whether MLflow takes it as the name of a parameter."""
    return (
        bool(name)
        and name.isascii()
        and all(c.isalnum() or c in "_-. " for c in name)
        and name.strip(".") != ""
    )
