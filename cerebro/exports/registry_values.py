"""Values of a registered model in MLflow: ids, tags, parameters, alias changes. Pure; for `mlflow_registry`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Set
from typing import NamedTuple

from cerebro.contract.stored.registry import ModelVersion
from cerebro.exports.mlflow_export import CHECKPOINT
from cerebro.exports.mlflow_server import MAX_PARAM, MAX_TAG


class AliasChanges(NamedTuple):
    """Alias changes of a model in MLflow's registry.

    Attributes:
        moved: alias -> version in MLflow.
        removed: aliases to delete.
        foreign: aliases set by others, which stay unchanged.
    """

    moved: dict[str, str]
    removed: tuple[str, ...]
    foreign: tuple[str, ...]


def alias_changes(
    wanted: Mapping[str, str], current: Mapping[str, str], *, ours: Set[str], versions: Set[str]
) -> AliasChanges:
    """Compare the aliases in Cerebro with those in MLflow.

    Args:
        wanted: alias -> version in MLflow, from Cerebro's registry.
        current: alias -> version, from MLflow.
        ours: aliases that this export set or was about to set.
        versions: versions in MLflow that this export created.
    """
    foreign = tuple(
        sorted(
            each for each in wanted if each in current and each not in ours and current[each] not in versions
        )
    )
    moved = {
        alias: version
        for alias, version in wanted.items()
        if alias not in foreign and current.get(alias) != version
    }
    removed = tuple(sorted(each for each in ours - wanted.keys() if current.get(each) in versions))
    return AliasChanges(moved, removed, foreign)


def identity(version: ModelVersion) -> str:
    """Return the stable id of a version, unique across clusters."""
    experiment = version.experiment
    origin = f"{experiment.name}@{experiment.created:.6f}"
    text = f"registry/{version.name}/{version.version}@{version.created:.6f}/{origin}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def folder_of(version: ModelVersion) -> str:
    """Return the folder of its file, relative to the run's artifacts."""
    return f"registered/{version.name}/v{version.version}"


def tags_of(version: ModelVersion) -> dict[str, str]:
    """Return the tags of a version, without empty ones."""
    source = version.source
    tags = {
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
    return {name: value[:MAX_TAG] for name, value in tags.items() if value}


def file_tags_of(version: ModelVersion) -> dict[str, str]:
    """Return the tags of a version with a file."""
    assert version.checkpoint is not None, "it is ready"
    return {CHECKPOINT: version.checkpoint.name, f"{CHECKPOINT}.checksum": version.checkpoint.checksum}


def params_of(version: ModelVersion) -> dict[str, str]:
    """Return the hyperparameters whose names MLflow accepts; a tag holds all hyperparameters."""
    texts = {name: _text(value)[:MAX_PARAM] for name, value in version.source.hyperparams.items()}
    return {name: value for name, value in texts.items() if _is_plain(name)}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _is_plain(name: str) -> bool:
    return (
        bool(name)
        and name.isascii()
        and all(c.isalnum() or c in "_-. " for c in name)
        and name.strip(".") != ""
    )
