"""Send requests to kvs_api without a socket, server or threads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import unquote

from cerebro.runtime.web.serving import Threads
from kvs_api.api.app import App
from kvs_api.api.long_polls import LongPoll
from kvs_api.store.store import Store

Result = TypeVar("Result")


class InThisThread(Threads):
    """Runs functions in the event loop's thread."""

    def __init__(self) -> None:
        super().__init__(1)
        self.close()

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """See `Threads`."""
        return function(*arguments)


@dataclass(frozen=True)
class Answer:
    """A response of the application."""

    status_code: int
    data: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.data.decode()

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.data)


def send_request(app: App, method: str, path: str, content: bytes | None, headers: dict[str, str]) -> Answer:
    """Send one request."""
    path, _, query = path.partition("?")
    sent = {"content-length": str(len(content or b"")), **headers}
    scope = {
        "type": "http",
        "method": method,
        "path": unquote(path),
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
        "server": ("testserver", 80),
    }
    messages: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content or b""}

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    asyncio.run(app(scope, receive, send))
    return Answer(messages[0]["status"], b"".join(each.get("body", b"") for each in messages))


def wait_for_news(store: Store, read: Callable[[], Result]) -> Result:
    """Call `read` until it returns news or its wait ends."""

    async def answer() -> Result:
        poll = LongPoll()
        store.poll.set(poll)
        while True:
            found = read()
            if not poll.is_waiting:
                return found
            await poll.news(asyncio.Event().wait)

    # Use a thread, because Playwright's event loop may run in this one.
    with ThreadPoolExecutor(1) as alone:
        return alone.submit(asyncio.run, answer()).result()
