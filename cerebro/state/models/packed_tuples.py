"""Named tuples as bytes plus shared parts, to store hundreds of thousands of sub-epochs.

As objects, their numbers and texts need three times the memory and dominate the time to read a snapshot.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Generic, TypeAlias, TypeVar, get_type_hints

_Item = TypeVar("_Item", bound=tuple[Any, ...])

_LENGTH = struct.Struct("<I")
_LEAST, _MOST = -(2**63), 2**63 - 1
_MAX_KNOWN = 1024


Compact: TypeAlias = tuple[tuple[Any, ...], bytes]
"""A packed tuple: the shareable part, and its own bytes."""


class Layout(Generic[_Item]):
    """Byte layout of a class of named tuples. Unlisted fields are shared.

    A field that is itself a named tuple is stored by its own fields, such as `curve.name`.

    Args:
        vectors: fields with tuples of floats; the first comes first in the bytes.
        floats, integers: fields with a number.
        texts: fields with a string.
        blobs: fields with bytes.
    """

    def __init__(
        self,
        kind: type[_Item],
        *,
        vectors: tuple[str, ...] = (),
        floats: tuple[str, ...] = (),
        integers: tuple[str, ...] = (),
        texts: tuple[str, ...] = (),
        blobs: tuple[str, ...] = (),
    ) -> None:
        fields: list[str] = []
        self._nested: list[tuple[slice, type[Any]]] = []
        for name, field in get_type_hints(kind).items():
            if parts := getattr(field, "_fields", ()):
                self._nested.insert(0, (slice(len(fields), len(fields) + len(parts)), field))
                fields += [f"{name}.{part}" for part in parts]
            else:
                fields.append(name)
        own_fields = (*vectors, *floats, *integers, *texts, *blobs)
        self._kind = kind
        self.shared = tuple(name for name in fields if name not in own_fields)
        """Fields in `Compact[0]`, in order."""
        self._numbers = struct.Struct(f"<{len(floats)}d{len(integers)}q")
        self._vectors, self._texts, self._blobs = len(vectors), len(texts), len(blobs)
        self._get_own_values = attrgetter(*own_fields)
        self._get_shared_values = attrgetter(*self.shared)
        self._floats, self._count = len(floats), len(floats) + len(integers)
        order = (*own_fields, *self.shared)
        self._places = tuple(order.index(name) for name in fields)

    def pack(self, one: _Item) -> Compact:
        """Pack a tuple."""
        own_values: tuple[Any, ...] = self._get_own_values(one)
        vectors, numbers = (
            own_values[: self._vectors],
            own_values[self._vectors : self._vectors + self._floats],
        )
        integers = own_values[self._vectors + self._floats : self._vectors + self._count]
        rest = own_values[self._vectors + self._count :]
        parts = [_framed(array("d", vector).tobytes()) for vector in vectors]
        # A worker may report any number: clamp to 64 bits.
        parts.append(self._numbers.pack(*numbers, *(min(max(number, _LEAST), _MOST) for number in integers)))
        parts += [_framed(text.encode()) for text in rest[: self._texts]]
        parts += [_framed(blob) for blob in rest[self._texts :]]
        return _common(self._get_shared_values(one)), b"".join(parts)

    def unpack(self, found: Iterable[Any]) -> _Item:
        """Return a new tuple from the two parts of a `Compact`."""
        values: list[Any] = []
        shared, packed = found
        at = 0
        for _ in range(self._vectors):
            vector = array("d")
            part, at = _part(packed, at)
            vector.frombytes(part)
            values.append(tuple(vector))
        values += self._numbers.unpack_from(packed, at)
        at += self._numbers.size
        for _ in range(self._texts):
            part, at = _part(packed, at)
            values.append(part.decode())
        for _ in range(self._blobs):
            part, at = _part(packed, at)
            values.append(part)
        values += shared
        fields = [values[place] for place in self._places]
        for place, kind in self._nested:  # last first, so that the earlier places stay valid
            fields[place] = [kind(*fields[place])]
        return self._kind(*fields)


def first_vector(found: Compact, place: int) -> float:
    """Read one number of the first vector, without the rest."""
    number: float = struct.unpack_from("<d", found[1], _LENGTH.size + 8 * place)[0]
    return number


def _framed(part: bytes) -> bytes:
    return _LENGTH.pack(len(part)) + part


def _part(content: bytes, at: int) -> tuple[bytes, int]:
    begin = at + _LENGTH.size
    end = begin + _LENGTH.unpack_from(content, at)[0]
    return content[begin:end], end


_known: dict[str, tuple[Any, ...]] = {}


def _common(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Intern values by their text: plan parameters have no hash, and 1 must differ from `True`."""
    if len(_known) >= _MAX_KNOWN:
        _known.clear()
    return _known.setdefault(repr(values), values)
