"""Routes of registered models: the list, new versions, aliases, and downloads.

The store numbers a version, and the controller copies its files; a new version gets its alias once they are copied.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from flask import Blueprint, Response, redirect, request, url_for
from flask.typing import ResponseReturnValue
from pydantic import TypeAdapter, ValidationError

from cerebro.commands.registration import registration_of
from cerebro.contract.base import Name
from cerebro.contract.stored.registry import AliasRequest, ModelVersion, Registration
from cerebro.errors import BadRequestError, ConflictError, NotFoundError
from dispatcher.access.guard import author
from dispatcher.commands.page import READING_S
from dispatcher.pages.live_pages import live_route, render
from dispatcher.read_models.read_model import ReadModel
from dispatcher.registry.view import RegisteredRow, Registry, VersionRow
from dispatcher.services import Services
from dispatcher.tabs.tabs import Tabs

_log = logging.getLogger(__name__)
_NAME: TypeAdapter[str] = TypeAdapter(Name)

COPY_S = 5.0
"""Maximum seconds to wait for the copy of a version before its alias is set."""
_POLL_S = 0.1


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the routes."""
    services = tabs.services
    reader = services.reader
    registry = Registry(reader, services.monotonic)

    @live_route(pages, "/registry", "registry")
    def page() -> Response:
        models = registry.models()
        is_live = any(version.state == "running" for model in models for version in model.versions)
        return Response(
            render(
                "registry/registry.html",
                title="Registered models",
                is_live=is_live,
                models=models,
                added=_added(models),
            )
        )

    @pages.post("/experiments/<name:name>/register")
    def register_model(name: str) -> ResponseReturnValue:
        fields = request.form
        target, alias = _checked_name(fields.get("name", "").strip()), fields.get("alias", "").strip()
        if alias:
            _alias_request(alias, 1)

        def build(read_model: ReadModel) -> Registration:
            if not read_model.is_complete:
                raise ConflictError(
                    f"the log of {name} is long and is still being read: try again in a moment"
                )
            return registration_of(
                read_model.state, fields.get("model", ""), run=fields.get("run") or None, author=author()
            )

        registration = reader.read_log(reader.record(name), build, timeout_s=READING_S)
        version = _add_version(services, target, registration)
        if alias and _is_copied(services, version):
            move = partial(services.store.move_alias, target, _alias_request(alias, version.version))
            reader.call(move, is_command=True)
        registry.invalidate()
        added = f"{target}/{version.version}" + (f"@{alias}" if alias else "")
        return redirect(url_for("pages.registry", added=added, _anchor=target), 303)

    @pages.post("/registry/<name:model>/aliases")
    def alias(model: str) -> ResponseReturnValue:
        version = request.form.get("version", "")
        number = int(version) if version.isascii() and version.isdigit() and len(version) < 9 else None
        if number is None and "remove" not in request.form:
            raise BadRequestError("name the version that gets the alias, such as 3")
        wanted = _alias_request(request.form.get("alias", "").strip(), number)
        reader.call(partial(services.store.move_alias, model, wanted), is_command=True)
        _log.info("alias model=%s alias=%s version=%s by=%s", model, wanted.alias, number, author())
        registry.invalidate()
        return redirect(url_for("pages.registry", _anchor=model), 303)

    @pages.get("/registry/<name:model>/<int:number>/file")
    def registered_file(model: str, number: int) -> Response:
        found = reader.call(partial(services.store.registered_model, model))
        version = next((each for each in found.versions if each.version == number), None)
        if version is None or version.checkpoint is None:
            raise NotFoundError(
                f"version {number} of {model} has no file: it does not exist or is not copied"
            )
        return services.files.download("checkpoints", version.checkpoint.name, f"{model}-v{number}.pt")


class _Added(NamedTuple):
    """A version that was just registered, and the alias that it should get."""

    model: str
    version: VersionRow
    alias: str


def _added(models: Sequence[RegisteredRow]) -> _Added | None:
    """Return the version that the address names as ``NAME/VERSION@ALIAS``."""
    target, _, alias = request.args.get("added", "").partition("@")
    name, _, number = target.partition("/")
    for model in models:
        for version in model.versions:
            if (model.name, str(version.version)) == (name, number):
                return _Added(name, version, alias)
    return None


def _add_version(services: Services, name: str, registration: Registration) -> ModelVersion:
    """Add a version, or return the existing one with the same source. So a form that is sent twice adds one."""
    try:
        known = services.reader.call(partial(services.store.registered_model, name)).versions
    except NotFoundError:
        known = ()
    source = registration.model_copy(update={"author": ""})
    for version in reversed(known):
        if version.state != "failed" and version.source.model_copy(update={"author": ""}) == source:
            return version
    # Requests at the same time know the same versions.
    once = hashlib.sha256(f"{name} {len(known)} {source.model_dump_json()}".encode()).hexdigest()[:32]
    add = partial(services.store.register_model, name, registration, once=once)
    version = services.reader.call(add, is_command=True)
    _log.info("registered model=%s version=%d by=%s", name, version.version, author())
    return version


def _checked_name(name: str) -> str:
    try:
        return _NAME.validate_python(name)
    except ValidationError as cause:
        raise BadRequestError(
            f"{name[:60]!r} is not a name of a registered model: use at most 50 lower-case letters, digits and dashes"
        ) from cause


def _alias_request(alias: str, version: int | None) -> AliasRequest:
    try:
        return AliasRequest(alias=alias, version=version)
    except ValidationError as cause:
        raise BadRequestError(
            f"{alias[:60]!r} is not an alias: use a letter, then lower-case letters, digits and dashes, at most 50"
        ) from cause


def _is_copied(services: Services, version: ModelVersion) -> bool:
    """Wait up to `COPY_S` for the end of copying a version's files; return True if they are copied."""
    deadline = services.monotonic() + COPY_S
    while version.state == "copying" and services.monotonic() < deadline:
        time.sleep(_POLL_S)
        model = services.reader.call(partial(services.store.registered_model, version.name))
        version = next((each for each in model.versions if each.version == version.version), version)
    return version.state == "ready"
