"""Decode Helm's release Secrets from Protobuf.

Kubernetes documentation: "Kubernetes API Concepts", section "Kubernetes Protobuf encoding"; field numbers are from
``k8s.io/api/core/v1/generated.proto`` and ``k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto``.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

PREFIX = b"k8s\x00"
_VARINT, _BYTES = 0, 2


def secret(body: bytes) -> dict[str, Any]:
    """Decode a request's body to the Secret's JSON form."""
    assert body.startswith(PREFIX), body[:20]
    envelope = dict(_fields(body[len(PREFIX) :]))
    content = list(_fields(envelope[2]))
    metadata = list(_fields(dict(content)[1]))
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": dict(metadata)[1].decode(),
            "namespace": dict(metadata).get(3, b"").decode(),
            "labels": {key: value.decode() for key, value in _map(metadata, 11)},
        },
        "data": {key: base64.b64encode(value).decode() for key, value in _map(content, 2)},
        "type": dict(content).get(3, b"").decode(),
    }


def _map(fields: list[tuple[int, bytes]], number: int) -> Iterator[tuple[str, bytes]]:
    for field, content in fields:
        if field == number:
            entry = dict(_fields(content))
            yield entry[1].decode(), entry.get(2, b"")


def _fields(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of all length-delimited fields; skip varints."""
    place = 0
    while place < len(content):
        tag, place = _number(content, place)
        number, place = _number(content, place)
        if tag & 7 == _BYTES:
            yield tag >> 3, content[place : place + number]
            place += number
        else:
            assert tag & 7 == _VARINT, f"wire type {tag & 7}"


def _number(content: bytes, place: int) -> tuple[int, int]:
    """Read a varint; return its value and the next position."""
    value = shift = 0
    while True:
        byte = content[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
