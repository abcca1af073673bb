"""The start form: typed values and their errors, per field. Pure.

`start.page` parses and checks each sent form with it. Checks the syntax of locators only;
`dispatcher.start.locator_check` reads them. Whether the name is free is decided by the store.
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
"""Names of text fields."""
_NAME: TypeAdapter[str] = TypeAdapter(Name)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_COMPLETE = {
    "s3": (re.compile(r"s3://[^/]+/.", re.I), "An S3 locator needs a bucket and a key: s3://bucket/path."),
    "file": (re.compile(r"file:///.", re.I), "A file locator needs three slashes: file:///path."),
}
_MAX_LOCATOR = 2048
_MAX_MISC = 100
_MAX_AUTHOR = 100


@dataclass(frozen=True, kw_only=True)
class StartForm:
    """A sent form.

    Attributes:
        fields: stripped texts by name in `FIELDS`.
        archive: SHA-256 of an archive that an earlier attempt stored.
        types: column types by split; only experiment files have them.
    """

    fields: Mapping[str, str]
    archive: str = ""
    archive_name: str = ""
    types: Mapping[str, dict[str, ColumnType]] = field(default_factory=dict)

    @classmethod
    def parse(cls, sent: Mapping[str, str]) -> StartForm:
        """Parse a sent form. All fields are optional."""
        archive = sent.get("kept_archive", "").strip()
        return cls(
            fields={name: sent.get(name, "").replace("\r\n", "\n").strip() for name in FIELDS},
            archive=archive if _SHA256.fullmatch(archive) else "",
            archive_name=sent.get("kept_archive_name", "").strip()[:200],
        )

    def filled(self, name: str, locators: Locators) -> StartForm:
        """Return the form with name and locators of an experiment file."""
        values = {"name": name, "misc": "\n".join(locators.misc)}
        splits = locators.splits()
        for split in SPLITS:
            values[f"{split}_metadata"] = splits[split].metadata if split in splits else ""
            values[f"{split}_objects"] = (splits[split].objects or "") if split in splits else ""
        types = {split: locator.types for split, locator in splits.items()}
        return replace(self, fields={**self.fields, **values}, types=types)

    def problems(self) -> dict[str, str]:
        """Return all errors by field, each with the cause and the remedy."""
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
                found[metadata] = "Objects need a metadata table: enter its locator."
            for name in (metadata, objects):
                if self.fields[name] and (problem := locator_problem(self.fields[name])):
                    found[name] = problem
        metadata_fields = {f"{split}_metadata" for split in SPLITS}
        if not any(self.fields[name] for name in metadata_fields) and not found.keys() & metadata_fields:
            found["train_metadata"] = "At least one split is required: enter the metadata of a split."
        if problem := _misc_problem(self._misc()):
            found["misc"] = problem
        return found

    def locators(self, problems: Container[str] = ()) -> Locators | None:
        """Return the locators of valid fields; `None` without any split."""
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
        """Return the experiment's record. The form must have no `problems`."""
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
        return f"{len(lines)} files, the limit is {_MAX_MISC}: put small files into the code archive."
    problems = ((number, locator_problem(line)) for number, line in enumerate(lines, start=1))
    return next((f"Line {number}: {problem}" for number, problem in problems if problem), "")


def locator_problem(text: str) -> str:
    """Return why `text` is not a locator, with a remedy, or an empty text."""
    if len(text) > _MAX_LOCATOR:
        return f"Longer than {_MAX_LOCATOR:,} characters."
    if not text.isprintable():
        return "Contains a control character: type it again."
    scheme = _SCHEME.match(text)
    kind = scheme[1].lower() if scheme else ""
    if not kind:
        relative = "A relative path differs between workers: use an absolute path, file:// or s3://."
        return "" if text.startswith("/") else relative
    if kind not in _COMPLETE:
        return f"Unknown kind {kind}: use an absolute path, file:// or s3://."
    pattern, problem = _COMPLETE[kind]
    return "" if pattern.match(text) else problem


def _name_problem(name: str) -> str:
    if not name:
        return "Enter a name, like digits-1."
    try:
        _NAME.validate_python(name)
    except ValidationError:
        return "Lower-case letters, digits and hyphens, at most 50, no hyphen at either end: like digits-1."
    return ""
