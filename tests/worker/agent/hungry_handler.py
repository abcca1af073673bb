"""A handler whose import uses up all memory."""

from __future__ import annotations

hoard = []
while True:
    hoard.append(bytearray(b"x") * (16 << 20))
