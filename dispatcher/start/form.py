"""The start form: what was typed, and everything that is wrong with it, per field. No effects.

Locators are checked for form only; `dispatcher.start.locator_check` looks at what they name.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter, ValidationError

from cerebro.contract.base import SPLITS, Name
from cerebro.contract.records import ColumnType, ExperimentRecord, Locator, Locators

FIELDS = frozenset(
    {
        "name",
        "author",
        "project",
        "misc",
        "file",
        *(f"{split}_{part}" for split in SPLITS for part in ("metadata", "objects")),
    }
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
    """The `FIELDS` as typed, stripped; `archive` is the hash of an archive that an earlier try has stored; `types` of
    columns by split, which an experiment file alone gives."""

    fields: Mapping[str, str]
    archive: str = ""
    archive_name: str = ""
    types: Mapping[str, dict[str, ColumnType]] = field(default_factory=dict)

    @classmethod
    def parse(cls, sent: Mapping[str, str]) -> StartForm:
        """Take what a browser sent; anything may be missing."""
        archive = sent.get("kept_archive", "").strip()
        return cls(
            fields={name: sent.get(name, "").replace("\r\n", "\n").strip() for name in FIELDS},
            archive=archive if _SHA256.fullmatch(archive) else "",
            archive_name=sent.get("kept_archive_name", "").strip()[:200],
        )

    def filled(self, name: str, locators: Locators) -> StartForm:
        """With what an experiment file says in place of what was typed."""
        given = {"name": name, "misc": "\n".join(locators.misc)}
        splits = locators.splits()
        for split in SPLITS:
            given[f"{split}_metadata"] = splits[split].metadata if split in splits else ""
            given[f"{split}_objects"] = (splits[split].objects or "") if split in splits else ""
        types = {split: locator.types for split, locator in splits.items()}
        return replace(self, fields={**self.fields, **given}, types=types)

    def problems(self) -> dict[str, str]:
        """Field -> what is wrong and what to do; all at once, so that one look mends them."""
        found: dict[str, str] = {}
        if problem := _name_problem(self.fields["name"]):
            found["name"] = problem
        if len(self.fields["author"]) > _MAX_AUTHOR or not self.fields["author"].isprintable():
            found["author"] = f"At most {_MAX_AUTHOR} characters on one line."
        if self.fields["project"] and _name_problem(self.fields["project"]):
            found["project"] = "Lower-case letters, digits and hyphens, at most 50, like vision."
        for split in SPLITS:
            metadata, objects = f"{split}_metadata", f"{split}_objects"
            if self.fields[objects] and not self.fields[metadata]:
                found[metadata] = "Objects need a metadata table that names them: give its locator."
            for name in (metadata, objects):
                if self.fields[name] and (problem := locator_problem(self.fields[name])):
                    found[name] = problem
        metadata_fields = {f"{split}_metadata" for split in SPLITS}
        if not any(self.fields[name] for name in metadata_fields) and not found.keys() & metadata_fields:
            found["train_metadata"] = "No split is named: give the metadata of at least one."
        if problem := _misc_problem(self._misc()):
            found["misc"] = problem
        return found

    def locators(self, problems: Container[str] = ()) -> Locators | None:
        """The locators of the fields that have no problem; None if there is no split among them."""
        good = {name: text for name, text in self.fields.items() if name not in problems}
        splits = {
            split: Locator(
                metadata=metadata,
                objects=good.get(f"{split}_objects") or None,
                types=self.types.get(split, {}),
            )
            for split in SPLITS
            if (metadata := good.get(f"{split}_metadata"))
        }
        misc = self._misc() if "misc" in good else ()
        return Locators.model_validate({**splits, "misc": misc}) if splits else None

    def record(self) -> ExperimentRecord:
        """The experiment; only for a form without `problems`."""
        locators = self.locators()
        assert locators is not None
        return ExperimentRecord(
            name=self.fields["name"],
            locators=locators,
            archive=self.archive or None,
            author=self.fields["author"],
            project=self.fields["project"],
        )

    def _misc(self) -> tuple[str, ...]:
        return tuple(line.strip() for line in self.fields["misc"].splitlines() if line.strip())


def _misc_problem(lines: Sequence[str]) -> str:
    if len(lines) > _MAX_MISC:
        return f"{len(lines)} files, the limit is {_MAX_MISC}: put small ones into the code archive."
    problems = ((number, locator_problem(line)) for number, line in enumerate(lines, start=1))
    return next((f"Line {number}: {problem}" for number, problem in problems if problem), "")


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
