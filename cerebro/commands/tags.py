"""The event that changes tags, after its checks. Pure; notebook, command line and page call `tags_event`."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from cerebro.commands.selection import chosen_fit, find_model
from cerebro.contract.events import TagsChanged
from cerebro.contract.tags import MAX_TAGS, changed_tags
from cerebro.errors import BadRequestError, ConflictError
from cerebro.state import ExperimentState


def tags_event(
    state: ExperimentState,
    changes: Mapping[str, str | None],
    *,
    model: str = "",
    run: str | None = None,
    by: str = "",
) -> TagsChanged:
    """Return the event that changes tags of the experiment, or of a model.

    Args:
        changes: key -> value; `None` deletes the tag.
        model: model of `run`; empty for the experiment.
        run: default: the newest fit.

    Raises:
        BadRequestError: a key or value is invalid, or there would be too many tags.
        NotFoundError: the run or model does not exist.
        ConflictError: the experiment is being deleted.
    """
    if state.deletion is not None:
        raise ConflictError(f"tags cannot change: experiment {state.name!r} is being deleted")
    found = chosen_fit(state, run) if model else None
    known = find_model(found, model).tags if found else state.tags
    try:
        event = TagsChanged(tags=dict(changes), run=found.id if found else "", model=model, by=by)
    except ValidationError as cause:
        keys = ", ".join(repr(key[:60]) for key in changes) or "no tag"
        raise BadRequestError(
            f"the tags cannot be set ({keys}): a key has at most 100 letters, digits, blanks and _ . / -, a value at "
            f"most 5,000 characters, and one request at most {MAX_TAGS} tags"
        ) from cause
    if changed_tags(known, event.tags) is None:
        raise BadRequestError(
            f"{model or f'experiment {state.name!r}'} would have more than {MAX_TAGS} tags: delete some first"
        )
    return event
