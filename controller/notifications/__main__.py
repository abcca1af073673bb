"""The sender's process: wiring only. `controller.notifications.supervision` starts it with the leader's term."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from cerebro.contract.stored.notifications import Message
from cerebro.errors import CerebroError, ConflictError
from cerebro.runtime import logs
from cerebro.runtime.kvs.client import KvsClient
from controller.loop.leadership import fence
from controller.notifications.delivery import Delivery, DeliveryError
from controller.notifications.sender import Sender
from controller.settings import Settings


def main() -> None:
    """Send messages until another controller leads."""
    try:
        settings, term = Settings.from_environment(os.environ), int(sys.argv[1])
        logs.set_up("controller", os.environ, secrets=(settings.token,))
    except CerebroError as error:
        sys.exit(f"notifications: {error}")
    kvs = KvsClient(settings.server, settings.token, retry_for_s=10.0, write_headers=lambda: fence(term))
    sender = Sender(kvs, _delivery())
    try:
        sender.run()
    except ConflictError:
        sender.close()


def _delivery() -> Callable[[str, Message], None]:
    try:
        return Delivery().send
    except DeliveryError as error:
        problem = str(error)

    def refuse(_: str, __: Message) -> None:
        raise DeliveryError(problem)

    return refuse


if __name__ == "__main__":
    main()
