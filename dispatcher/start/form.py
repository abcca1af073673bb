"""The start form: what was typed, and everything that is wrong with it, per field. No effects.

Locators are checked for form only; `dispatcher.start.locator_check` looks at what they name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from cerebro.contract.base import SPLITS, Name
from cerebro.contract.records import ExperimentRecord, Locator, Locators

FIELDS = frozenset(
    {"name", "author", "misc", *(f"{split}_{part}" for split in SPLITS for part in ("metadata", "objects"))}
)
"""Fields of text, by name."""
_NAME: TypeAdapter[str] = TypeAdapter(Name)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_WHOLE = {
    "s3": (re.compile(r"s3://[^/]+/.", re.I), "An S3 locator names a bucket and a key: s3://bucket/path."),
    "file": (re.compile(r"file:///.", re.I), "A file locator has three slashes: file:///path."),
}
_MAX_LOCATOR = 2048
_MAX_MISC = 100
_MAX_AUTHOR = 100


@dataclass(frozen=True, kw_only=True)
class StartForm:
    """The fields as typed, stripped; `archive` is the hash of an archive that an earlier try has stored."""

    name: str = ""
    author: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    objects: Mapping[str, str] = field(default_factory=dict)
    misc: str = ""
    archive: str = ""
    archive_name: str = ""

    @classmethod
    def parse(cls, fields: Mapping[str, str]) -> StartForm:
        """Take what a browser sent; anything may be missing."""

        def typed(name: str) -> str:
            return fields.get(name, "").strip()

        archive = typed("kept_archive")
        return cls(
            name=typed("name"),
            author=typed("author"),
            metadata={split: typed(f"{split}_metadata") for split in SPLITS},
            objects={split: typed(f"{split}_objects") for split in SPLITS},
            misc=fields.get("misc", "").replace("\r\n", "\n").strip(),
            archive=archive if _SHA256.fullmatch(archive) else "",
            archive_name=typed("kept_archive_name")[:200],
        )

    def misc_lines(self) -> tuple[str, ...]:
        """Locators of miscellaneous files, one a line."""
        return tuple(line.strip() for line in self.misc.splitlines() if line.strip())

    def problems(self) -> dict[str, str]:
        """Field -> what is wrong and what to do; all at once, so that one look mends them."""
        found: dict[str, str] = {}
        if problem := _name_problem(self.name):
            found["name"] = problem
        if len(self.author) > _MAX_AUTHOR or not self.author.isprintable():
            found["author"] = f"At most {_MAX_AUTHOR} characters on one line."
        for split in SPLITS:
            metadata, objects = self.metadata.get(split, ""), self.objects.get(split, "")
            if objects and not metadata:
                found[f"{split}_metadata"] = (
                    "Objects need a metadata table that names them: give its locator."
                )
            if metadata and (problem := locator_problem(metadata)):
                found[f"{split}_metadata"] = problem
            if objects and (problem := locator_problem(objects)):
                found[f"{split}_objects"] = problem
        if not any(self.metadata.values()) and not found.keys() & {f"{split}_metadata" for split in SPLITS}:
            found["train_metadata"] = "No split is named: give the metadata of at least one."
        if problem := self._misc_problem():
            found["misc"] = problem
        return found

    def readable_locators(self, problems: Mapping[str, str]) -> Locators | None:
        """The locators of the fields that have no problem; None if there is no split among them."""
        splits = {
            split: Locator(metadata=metadata, objects=_good(self.objects, split, "objects", problems) or None)
            for split in SPLITS
            if (metadata := _good(self.metadata, split, "metadata", problems))
        }
        misc = () if "misc" in problems else self.misc_lines()
        return Locators.model_validate({**splits, "misc": misc}) if splits else None

    def record(self) -> ExperimentRecord:
        """The experiment; only for a form without `problems`."""
        splits = {
            split: Locator(metadata=metadata, objects=self.objects.get(split) or None)
            for split, metadata in self.metadata.items()
            if metadata
        }
        locators = Locators.model_validate({**splits, "misc": self.misc_lines()})
        return ExperimentRecord(
            name=self.name, locators=locators, archive=self.archive or None, author=self.author
        )

    def _misc_problem(self) -> str:
        lines = self.misc_lines()
        if len(lines) > _MAX_MISC:
            return f"{len(lines)} files, the limit is {_MAX_MISC}: put small ones into the code archive."
        for number, line in enumerate(lines, start=1):
            if problem := locator_problem(line):
                return f"Line {number}: {problem}"
        return ""


def _good(fields: Mapping[str, str], split: str, name: str, problems: Mapping[str, str]) -> str:
    return "" if f"{split}_{name}" in problems else fields.get(split, "")


def locator_problem(text: str) -> str:
    """Why `text` cannot be a locator, and what would be one; empty if it can."""
    if len(text) > _MAX_LOCATOR:
        return f"Longer than {_MAX_LOCATOR:,} characters."
    if not text.isprintable():
        return "Has a control character in it: type it again."
    scheme = _SCHEME.match(text)
    kind = scheme[1].lower() if scheme else ""
    if not kind:
        relative = (
            "A relative path is another place on every worker: give an absolute path, file:// or s3://."
        )
        return "" if text.startswith("/") else relative
    if kind not in _WHOLE:
        return f"Unknown kind {kind}: use an absolute path, file:// or s3://."
    pattern, problem = _WHOLE[kind]
    return "" if pattern.match(text) else problem


def _name_problem(name: str) -> str:
    if not name:
        return "Give the experiment a name, like digits-1."
    try:
        _NAME.validate_python(name)
    except ValidationError:
        return "Lower-case letters, digits and hyphens, at most 50, no hyphen at either end: like digits-1."
    return ""
