"""Serve the emulated API over loopback HTTP: requests, streams and broken connections."""

from __future__ import annotations

import copy
import json
import re
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

from kubernetes.client import Configuration

from tests.controller.kubernetes.emulator import NAMESPACE, SET, Emulator, Fault, Json, Request
from tests.http_server import HttpServer


@contextmanager
def serving(emulator: Emulator, tls: ssl.SSLContext | None = None) -> Iterator[Configuration]:
    """Serve until the block exits, then close all connections. Yields the client configuration."""

    class Handler(_Handler):
        pass

    Handler.emulator = emulator
    server = HttpServer(("127.0.0.1", 0), Handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield Configuration(host=f"http://127.0.0.1:{server.server_address[1]}", retries=False)
    finally:
        emulator.close()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    emulator: Emulator

    def log_message(self, format: str, *args: object) -> None:
        """Discard log messages."""

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(address.query).items()}
        verb = "watch" if query.get("watch") == "true" else "list"
        self._serve(
            Request(verb=verb, resource=address.path.split("/")[-1], query=query, token=self._token())
        )

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        scale = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/{SET}/scale"
        resize = re.fullmatch(f"/api/v1/namespaces/{NAMESPACE}/pods/([^/]+)/resize", self.path)
        assert self.headers["Content-Type"] == f"application/{'strategic-' if resize else ''}merge-patch+json"
        assert resize or self.path == scale
        resource, name = ("pods/resize", resize[1]) if resize else ("statefulsets/scale", "")
        self._serve(
            Request(verb="patch", resource=resource, query={}, token=self._token(), body=body, name=name)
        )

    def _token(self) -> str:
        return self.headers.get("Authorization", "").partition(" ")[2]

    def _serve(self, request: Request) -> None:
        emulator = self.emulator
        emulator.hold(request)
        fault = emulator.fault(request.verb)
        with emulator.news:
            emulator.requests.append(request)
            emulator.news.notify_all()
        with suppress(OSError):
            if fault is not None and not fault.line:
                self._fail(fault)
            elif request.token != emulator.token:
                self._status(401, "Unauthorized")
            elif not emulator.allows(request):
                who = "system:serviceaccount:cerebro:cerebro-controller"
                self._status(403, f'User "{who}" cannot {request.verb} resource "{request.resource}"')
            elif request.verb == "watch":
                self._watch(request, fault)
            elif request.verb == "list":
                self._list(request)
            elif request.resource == "pods/resize":
                self._resize(request)
            else:
                emulator.scale(request.body["spec"]["replicas"])
                self._answer(200, {"kind": "Scale", "spec": request.body["spec"]})

    def _resize(self, request: Request) -> None:
        """Resize an existing pod, if the server offers it."""
        found = self.emulator.objects["pods"].get(request.name)
        if found is None or not self.emulator.resizes:
            return self._status(404, "the server could not find the requested resource")
        (new_container,) = request.body["spec"]["containers"]
        content = copy.deepcopy(found)
        for container in content["spec"]["containers"]:
            if container["name"] == new_container["name"]:
                for which, values in new_container["resources"].items():
                    container["resources"].setdefault(which, {}).update(values)
        self.emulator.put("pods", content)
        return self._answer(200, content)

    def _fail(self, fault: Fault) -> None:
        self.close_connection = True
        if fault.status:
            self._answer(fault.status, fault.body or b"injected", fault.headers)
        else:
            # Send half an answer and stop.
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")

    def _status(self, code: int, message: str) -> None:
        self._answer(code, {"kind": "Status", "code": code, "message": message})

    def _answer(self, status: int, content: Json | bytes, headers: Mapping[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _list(self, request: Request) -> None:
        emulator = self.emulator
        with emulator.news:
            found = sorted(emulator.matching(request), key=lambda content: str(content["metadata"]["name"]))
            # All pages have the version of the first page.
            begin, version = map(int, request.query.get("continue", f"0/{emulator.version}").split("/"))
            is_outdated = version < emulator.version
        if is_outdated:
            return self._status(410, "The provided continue parameter is too old")
        end = begin + emulator.page
        metadata = {"resourceVersion": str(version)}
        if end < len(found):
            metadata["continue"] = f"{end}/{version}"
        return self._answer(200, {"kind": "List", "metadata": metadata, "items": found[begin:end]})

    def _watch(self, request: Request, fault: Fault | None) -> None:
        emulator, version = self.emulator, int(request.query["resourceVersion"])
        with emulator.news:
            epoch = emulator.epoch
            if version < emulator.oldest:
                # Like real API servers, answer 200 and send the error as an event.
                expired = _line(
                    "ERROR", {"code": 410, "reason": "Expired", "message": "too old resource version"}
                )
                fault = Fault(verb="watch", line=expired)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if fault is not None:
            self._chunk(fault.line)
            self.close_connection = not fault.line.endswith(b"\n")
        else:
            self._stream(request, version, epoch)
            self.close_connection = not emulator.is_open or emulator.is_next("watch")
        if not self.close_connection:
            self.wfile.write(b"0\r\n\r\n")

    def _stream(self, request: Request, after_version: int, epoch: int) -> None:
        """Send events after version `seen` until a timeout without events, or the end of this epoch."""
        for entries in self.emulator.news_since(epoch, float(request.query["timeoutSeconds"])):
            for version, resource, kind, content in entries:
                is_asked = kind == "BOOKMARK" or self.emulator.matches(request, content)
                if resource == request.resource and version > after_version and is_asked:
                    self._chunk(_line(kind, content))

    def _chunk(self, content: bytes) -> None:
        # Split the line, as a network may.
        for piece in filter(None, (content[:7], content[7:])):
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")


def _line(kind: str, content: Json) -> bytes:
    return json.dumps({"type": kind, "object": content}).encode() + b"\n"
