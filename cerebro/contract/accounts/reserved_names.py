"""Reserved names: people and tokens cannot have them, because in logs and rules they mean the platform. Pure.

kvs_api checks them for tokens, the dispatcher for people who sign in.

`reason` compares skeletons: case, accents, width, punctuation, and letters of other scripts that look like Latin ones
make no difference. Spaces do: "B. Rain" is a person. The look-alikes follow Unicode Technical Standard 39, for the
letters of these names only.
"""

# ruff: noqa: RUF001 - the table below needs letters that look like Latin ones

from __future__ import annotations

import unicodedata

RESERVED = (
    "admin",
    "autoscaler",
    "controller",
    "dispatcher",
    "export",
    "kvs_api",
    "operator",
    "search",
    "worker",
)
"""Actors that the platform writes into logs: the operator, the services, and their commands."""

_OUTSIDE = "oidc:"
"""Prefix of ids of people of an identity provider."""

_LOOK_ALIKES = {
    letter: latin
    for latin, letters in {
        "a": "аɑαᴀ@4", "b": "ьвƅ", "c": "сϲⅽᴄ", "d": "ԁɗᴅ", "e": "еєҽεᴇ3", "g": "ɡց", "h": "һհʜ", "i": "іıιӏɪ1lʟ|!ǀ",
        "k": "кκᴋ", "m": "мⅿᴍ", "n": "пոηոɴ", "o": "оοσօᴏ0", "p": "рρᴘ", "r": "гⲅᴦʀ", "s": "ѕʂꜱ$5", "t": "тτᴛ",
        "u": "υսцᴜ", "v": "ѵνᴠ", "w": "ѡԝωᴡ", "x": "хχ", "y": "уүγ",
    }.items()
    for letter in letters
}  # fmt: skip


def _skeleton(name: str) -> str:
    """Map names that look alike to the same text."""
    # Look-alikes first: NFKC turns a lunate sigma, which looks like c, into a final sigma.
    drawn = "".join(_LOOK_ALIKES.get(letter, letter) for letter in name.casefold())
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", drawn).casefold()).strip()
    letters = ("_" if letter.isspace() else _LOOK_ALIKES.get(letter, letter) for letter in plain)
    skeleton = "".join(letter for letter in letters if letter.isalnum() or letter == "_")
    return skeleton.replace("rn", "m").replace("vv", "w")


_SKELETONS = {_skeleton(text): name for name in RESERVED for text in (name, name.replace("_", "-"))}


def reason(name: str) -> str:
    """Return a message for people if a name is reserved, else an empty text."""
    if name.casefold().startswith(_OUTSIDE):
        return f"the name {name!r} begins as ids of an identity provider do: choose another one"
    known = _SKELETONS.get(_skeleton(name))
    if known is None:
        return ""
    like = "" if known == name else f", or looks like {known!r}"
    return f"the name {name!r} is reserved{like}: logs mean the platform by it, so choose another one"


def same_name(name: str) -> str:
    """Normalize case and Unicode form, so that equal names give equal texts."""
    return unicodedata.normalize("NFKC", name).casefold()
