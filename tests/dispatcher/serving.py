"""An app served by threads of this process, for browsers and programs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import waitress.server
from flask import Flask

from tests.waiting import HANG_S


@contextmanager
def serving(app: Flask) -> Iterator[str]:
    """Serve it on a free port of this machine; its address."""
    sockets: dict[int, Any] = {}
    server = waitress.server.create_server(app, map=sockets, host="127.0.0.1", port=0, threads=4)
    loop = threading.Thread(target=server.run, daemon=True)
    loop.start()
    yield f"http://127.0.0.1:{server.effective_port}"
    end(server, sockets, loop)


def end(server: Any, sockets: dict[int, Any], loop: threading.Thread) -> None:
    """Answer no more; in the server's own loop, which ends when there is nothing left to listen on."""
    # Its threads first: they would still ring for the loop.
    server.task_dispatcher.shutdown()
    trigger = next(one for one in sockets.values() if hasattr(one, "thunks"))

    def close() -> None:
        for one in list(sockets.values()):
            if hasattr(one, "active_channels"):
                one.del_channel()
                one.socket.close()
            else:
                one.handle_close()

    with contextlib.suppress(OSError):  # the loop may have closed it by then, having been woken before
        trigger.pull_trigger(close)
    loop.join(HANG_S)
