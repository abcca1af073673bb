"""Views of registered models (`kvs_api.store.registry`), for clients, the dispatcher and the controller.

The owner of the first version's experiment owns the name: other users cannot add versions or move aliases. On
clusters without users everyone can. No model file passes through these views: the controller copies them.
"""

from __future__ import annotations

import uuid

from starlette.responses import Response

from cerebro import errors
from cerebro.contract.accounts.identity import Scope
from cerebro.contract.stored.registry import AliasRequest, Registration, RegistryAnswer, VersionOutcome
from kvs_api.api.call import Call, answer, checked_name
from kvs_api.api.notification_views import NotificationViews


class RegistryViews(NotificationViews):
    """One method for each registry entry of `STORE`."""

    def registry(self, call: Call) -> Response:
        """Return all registered models, or only versions with files to copy."""
        copying = call.args.get("copying") == "1"
        return answer(RegistryAnswer(models=self._store.registry(copying=copying)))

    def registered_model(self, call: Call, name: str) -> Response:
        """Return a registered model."""
        return answer(self._store.registered_model(checked_name(name)))

    def register_model(self, call: Call, name: str) -> Response:
        """Add a version."""
        registration, who = call.body(Registration), call.principal
        self._check_may_change(call, registration.experiment)
        self._check_may_extend(call, checked_name(name))
        if who is not None:
            registration = registration.model_copy(update={"author": who.name})
        once = call.identity() or uuid.uuid4().hex  # without one, each call counts
        version = self._store.register_model(name, registration, once)
        source = f"{registration.model} of {registration.run} of {registration.experiment}"
        self._note(call, f"registered {source} as {name}/{version.version}")
        return answer(version)

    def settle_version(self, call: Call, name: str) -> Response:
        """Record the outcome of copying a version's files."""
        return answer(self._store.settle_version(checked_name(name), call.body(VersionOutcome)))

    def move_alias(self, call: Call, name: str) -> Response:
        """Point an alias to another version."""
        request = call.body(AliasRequest)
        self._check_may_extend(call, checked_name(name))
        moved = self._store.move_alias(name, request)
        self._note(call, f"moved {name}@{request.alias} to version {request.version or 'none'}")
        return answer(moved)

    def _check_may_extend(self, call: Call, name: str) -> None:
        who = call.principal
        if who is None or who.may(Scope.ADMINISTER):
            return
        try:
            model = self._store.registered_model(name)
        except errors.NotFoundError:
            return
        if not model.versions or any(each.version < model.versions[0].version for each in model.unreadable):
            raise errors.ForbiddenError(
                f"whose the registered model {name!r} is cannot be read ({model.unreadable[0].reason}): register under "
                "another name, or ask an admin"
            )
        owner = model.versions[0].experiment
        if not who.is_in(owner):
            whose = owner.project or (owner.author if owner.owner else "the admins")
            raise errors.ForbiddenError(
                f"the registered model {name!r} belongs to {whose}: register under another name, or ask an admin"
            )
