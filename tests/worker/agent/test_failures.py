"""Failure texts are sanitized, show user frames once, and keep exception chains."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cerebro
from cerebro.contract.tasks.failures import MAX_MESSAGE, MAX_TRACEBACK, Failure, FailureKind
from cerebro.contract.texts import cleaned
from cerebro.worker.child.task_loop import failure_of
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.metrics import checked_metrics

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=200)


@given(ANY_TEXT, st.integers(60, 300))
def test_any_text_can_be_cleaned_for_storage_and_display(text: str, limit: int) -> None:
    """Control characters are removed within the length limit, and a second pass changes nothing."""
    found = cleaned(text, limit)
    assert len(found) <= limit
    assert found == cleaned(found, limit)
    found.encode()
    assert not [c for c in found if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]


@given(ANY_TEXT, ANY_TEXT)
def test_a_failure_with_any_text_survives_json(message: str, traceback: str) -> None:
    """JSON round-trips unchanged, also for failures of older logs."""
    failure = Failure(kind=FailureKind.USER_ERROR, message=message, traceback=traceback)
    assert Failure.model_validate_json(failure.model_dump_json()) == failure
    assert Failure.model_validate(failure.model_dump(mode="json")) == failure


# --- frames ------------------------------------------------------------------------------------------


def users(report: Callable[[], None]) -> None:
    report()


def fail() -> None:
    raise ValueError("boom")


def caught(call: Callable[[], object]) -> Failure:
    with pytest.raises(BaseException) as error:
        call()
    return failure_of(error.value)


def test_frames_of_the_platform_are_omitted() -> None:
    """User code calls the data loader, which calls user code: only user frames are shown, and the error once."""

    def items() -> list[float]:
        fail()
        return []

    class Value:
        def item(self) -> float:
            fail()
            return 0.0

    class Loader:
        num_rows, own_rows, batch_size, first, share = 1, 1, 1, 0, (0, 1)

        def __len__(self) -> int:
            return 1

        def __iter__(self) -> object:
            return iter(items())

    failure = caught(lambda: users(lambda: list(InstrumentedLoader(Loader()))))  # type: ignore[arg-type]
    assert f"{Path(cerebro.__file__).parent}/" not in failure.traceback
    assert [failure.traceback.count(name) for name in ("in users", "in items", "in fail", "Traceback")] == [
        1
    ] * 4
    assert failure.text.count("boom") == 2  # the message, and the source line
    assert failure.line == "ValueError: boom"


def test_chains_are_kept() -> None:
    """This covers `raise from` and errors during another error's handling, each with its frames."""

    def chained() -> None:
        try:
            try:
                fail()
            except ValueError as error:
                raise KeyError("middle") from error
        except KeyError:
            raise TypeError("last")  # noqa: B904 - the context is what is tested

    traceback = caught(chained).traceback
    order = [
        "ValueError: boom",
        "was the direct cause of",
        "KeyError: 'middle'",
        "During handling",
        "TypeError: last",
    ]
    places = [traceback.index(part) for part in order]
    assert places == sorted(places)
    assert traceback.count("Traceback") == 3
    assert "boom" not in caught(_hidden).traceback


def _hidden() -> None:
    try:
        fail()
    except ValueError:
        raise TypeError("last") from None


def test_an_error_of_the_platform_keeps_all_its_frames() -> None:
    """Without user code in the traceback, every frame is kept, so that bugs of the platform are visible."""
    with pytest.raises(TypeError) as error:
        checked_metrics({}, "train")  # type: ignore[call-arg]
    assert error.value.__traceback__ is not None
    error.value.__traceback__ = error.value.__traceback__.tb_next
    failure = failure_of(error.value)
    assert failure.message.startswith("TypeError: ")


def test_exception_groups_and_notes_are_included() -> None:
    """Each exception of a group and all notes are included."""
    first, second = ValueError("one"), KeyError("two")
    first.add_note("seen in the kitchen")
    traceback = failure_of(ExceptionGroup("several", [first, second])).traceback
    for part in ("several", "ValueError: one", "seen in the kitchen", "KeyError: 'two'"):
        assert part in traceback


def test_long_chains_and_deep_recursion_are_cut() -> None:
    """The conversion is fast and never fails."""

    def deep(depth: int) -> None:
        deep(depth + 1)

    assert "RecursionError" in caught(lambda: deep(0)).message
    error: BaseException = ValueError("first")
    for number in range(2000):
        following = ValueError(f"number {number}")
        following.__cause__ = error
        error = following
    error.__cause__.__cause__ = error  # type: ignore[union-attr]
    failure = failure_of(error)
    assert len(failure.traceback) <= MAX_TRACEBACK
    assert len(failure_of(ValueError("x" * 10**7)).message) <= MAX_MESSAGE
