"""A handler that is never made: importing it uses up all memory there is."""

from __future__ import annotations

hoard = []
while True:
    hoard.append(bytearray(b"x") * (16 << 20))
