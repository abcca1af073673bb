"""Forms to add, clone, change and extend models and to set their priority."""

from __future__ import annotations

import re

import pytest

from cerebro.contract.events import (
    ModelChanged,
    ModelExtended,
    ModelsAdded,
    ModelStopRequested,
    PriorityChanged,
)
from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import ChoiceOf, Space
from tests.dispatcher.fakes import TOKEN, Bench, Browser
from tests.dispatcher.pages.seen import text_of
from tests.dispatcher.stories import fit_of, running_story

AT = "/experiments/digits"


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.store.add(running_story())
    return bench


@pytest.fixture
def browser(bench: Bench) -> Browser:
    """Open a browser signed in as Ada."""
    browser = bench.browser()
    assert browser.post("/sign-in", {"token": TOKEN, "name": "Ada"}).status_code == 303
    return browser


Fields = dict[str, object]


def sent(page: str) -> Fields:
    """Read the fields of a form as a browser would send them."""
    form = page.partition('class="terms"')[2]
    fields: Fields = dict(re.findall(r'<input[^>]* name="([^"]+)" value="([^"]*)"', form))
    fields["model"] = re.findall(r'name="model" value="([^"]*)"', form)
    for name, value in re.findall(r'<input type="radio" name="([^"]+)" value="([^"]*)" checked', page):
        fields[name] = value
    return fields


def review(browser: Browser, what: str, model: str, **typed: str) -> tuple[int, Fields, str]:
    """Fill a fresh form and request the difference; return status, fields and page."""
    path = f"{AT}/{what}" + (f"?model={model}" if model else "")
    answer = browser.post(
        f"{AT}/{what}", sent(browser.get(path).text) | typed | {"step": "review"}, form=path
    )
    return answer.status_code, sent(answer.text), answer.text


def send(browser: Browser, what: str, fields: Fields) -> tuple[int, str, str]:
    """Press the send button; return status, location and page."""
    answer = browser.post(f"{AT}/{what}", fields | {"step": "send"}, form="/start")
    return answer.status_code, answer.headers.get("Location", ""), answer.text


def difference(page: str) -> str:
    return text_of(page.partition('id="difference"')[2].partition("</section>")[0])


def test_a_model_is_changed_after_its_difference_was_shown(bench: Bench, browser: Browser) -> None:
    """Old and new values side by side. The event has only the changes, and the author."""
    status, fields, page = review(browser, "change", "m01", **{"hp.learning_rate": "1e-3"})
    assert status == 200
    assert "learning_rate 0.05 0.001" in difference(page)
    assert "layers" not in difference(page)
    before = len(bench.store.logs["digits"])
    assert before == len(running_story().events)
    status, location, _ = send(browser, "change", fields)
    assert (status, location) == (303, f"{AT}/models/m01?fit=fit-1")
    event = bench.store.logs["digits"][-1]
    assert isinstance(event, ModelChanged)
    assert (event.model, event.hyperparams, event.by) == ("m01", {"learning_rate": 0.001}, "Ada")
    text = text_of(browser.get(location).text)
    assert "learning_rate 0.05 0.001 the next sub-epoch" in text
    assert "Ada changed model m01: learning_rate=0.001 (before: learning_rate=0.05)" in text
    assert "Ada changed model m01" in text_of(browser.get(f"{AT}/history").text).replace("Ada  ", "Ada ")
    assert "learning_rate is 0.001 since the next sub-epoch" in browser.get(f"{AT}/models").text


def test_a_warm_clone_continues_from_its_parent(bench: Bench, browser: Browser) -> None:
    """The form shows the parent checkpoint; the new page names parent, epoch and author."""
    status, fields, page = review(browser, "clone", "m00", start="best", epochs="9", **{"hp.layers": "1"})
    assert status == 200
    assert "It continues m00 from epoch 2, with 7 of 9 epochs remaining" in difference(page)
    status, location, _ = send(browser, "clone", fields)
    assert (status, location) == (303, f"{AT}/models/m08?fit=fit-1")
    event = bench.store.logs["digits"][-1]
    assert isinstance(event, ModelsAdded)
    (new,) = event.models
    assert (new.epochs, new.checkpoint and (new.checkpoint.model, new.checkpoint.at)) == (9, ("m00", "best"))
    text = text_of(browser.get(location).text)
    assert "Continues m00 from epoch 2" in text
    assert "Ada added a model to fit-1, from m00" in text
    assert "m00 at epoch 2" in text_of(browser.get(f"{AT}/models").text)
    assert re.search(r"added a model to fit-1, from m00 ?: ?m08", text_of(browser.get(f"{AT}/history").text))


def test_a_cold_clone_and_a_new_model_start_with_new_weights(bench: Bench, browser: Browser) -> None:
    """A new model takes only known names; the page asks for missing ones."""
    _, fields, page = review(browser, "clone", "m00", **{"hp.layers": "3"})
    assert "starts with \N{EN DASH} new weights" in difference(page)
    status, location, _ = send(browser, "clone", fields)
    assert status == 303
    assert "Clone of m00 with new weights" in text_of(browser.get(location).text)
    _, fields, page = review(browser, "add", "", **{"hp.learning_rate": "0.2"})
    assert "layers is missing, but every other model has it" in difference(page)
    assert send(browser, "add", fields)[0] == 303
    cold, added = bench.store.logs["digits"][-2:]
    assert isinstance(cold, ModelsAdded)
    assert isinstance(added, ModelsAdded)
    assert (cold.models[0].parent, cold.models[0].hyperparams["layers"]) == ("m00", 3)
    want = {"learning_rate": 0.2, "batch_size": 32}
    assert added.models[0].hyperparams == want


@pytest.mark.parametrize(
    ("what", "model", "typed", "key", "says"),
    [
        ("change", "m01", {"hp.learning_rate": ".5"}, "value-0", "&#39;.5&#39; is a text: give a number."),
        ("change", "m01", {"hp.batch_size": "9999"}, "value-2", "batch_size is 9999, expected a whole number from 1"),
        ("change", "m01", {"hp.learning_rate": "NaN"}, "value-0", "use numbers, text, booleans"),
        ("clone", "m00", {"start": "7"}, "start", "Epoch 7 is not complete: model m00 has trained 2 epochs"),
        ("clone", "m00", {"start": "last", "epochs": "2"}, "epochs", "give epochs of 3 or more."),
        ("clone", "m00", {"epochs": "few"}, "epochs", "epochs is &#39;few&#39;, expected a whole number from 1."),
        ("extend", "m00", {"epochs": "1"}, "epochs", "m00 has begun epoch 3: give at least 3."),
        ("prioritize", "m00", {"priority": "soon"}, "priority", "No priority &#39;soon&#39;: choose one of low"),
        ("add", "", {"hp.batch_size": ""}, "value-2", "batch_size is None, expected a whole number from 1"),
    ],
)  # fmt: skip
def test_errors_are_next_to_their_fields_and_the_input_stays(
    bench: Bench, browser: Browser, what: str, model: str, typed: dict[str, str], key: str, says: str
) -> None:
    """The same rules and messages as in notebook and command line; nothing is sent."""
    before = len(bench.store.logs["digits"])
    status, fields, page = review(
        browser, what, model, **typed, **{"hp.layers": "2"} if what == "change" else {}
    )
    assert status == 422
    match = re.search(rf'id="{key}-mistake">([^<]*)<', page)
    assert match
    assert says in match[1]
    kept = {name: value for name, value in typed.items() if name != "start"}
    assert kept.items() <= fields.items()
    assert send(browser, what, fields | typed)[0] == 422
    assert len(bench.store.logs["digits"]) == before


def test_all_mistakes_are_reported_together(browser: Browser) -> None:
    """Each next to its field."""
    typed = {"hp.learning_rate": "fast", "hp.layers": "true", "epochs": "0"}
    status, _, page = review(browser, "clone", "m00", **typed)
    assert status == 422
    assert "3 fields need a correction." in difference(page)
    assert len(re.findall(r'id="(?:value-[01]|epochs)-mistake"', page)) == 3


def test_only_reviewed_values_are_sent(bench: Bench, browser: Browser) -> None:
    """Values typed after the review, or changes by others since then, need a new review."""
    _, fields, _ = review(browser, "change", "m01", **{"hp.learning_rate": "0.5"})
    status, _, page = send(browser, "change", fields | {"hp.learning_rate": "0.7"})
    assert status == 409
    assert "The difference has changed since it was shown" in page
    assert "learning_rate 0.05 0.7" in difference(page)
    bench.store.append(
        "digits", ModelChanged(run="fit-1", model="m01", hyperparams={"learning_rate": 0.06}, by="Bob")
    )
    bench.monotonic.now += 1
    status, _, page = send(browser, "change", fields)
    assert status == 409
    assert "learning_rate 0.06 0.5" in difference(page)
    assert bench.store.logs["digits"][-1].by == "Bob"  # type: ignore[union-attr]


def test_an_unchanged_field_changes_nothing(bench: Bench, browser: Browser) -> None:
    """Although others changed that value after the form was opened."""
    _, fields, _ = review(browser, "change", "m01", **{"hp.layers": "3"})
    bench.store.append(
        "digits", ModelChanged(run="fit-1", model="m01", hyperparams={"learning_rate": 0.06}, by="Bob")
    )
    bench.monotonic.now += 1
    assert send(browser, "change", fields)[0] == 303
    event = bench.store.logs["digits"][-1]
    assert isinstance(event, ModelChanged)
    assert event.hyperparams == {"layers": 3}


def test_a_late_command_shows_the_reason(
    bench: Bench, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user stopped the model in the meantime. The typed text stays."""
    _, fields, _ = review(browser, "change", "m01", **{"hp.layers": "3"})
    append = type(bench.store).append

    def beaten(store: object, name: str, event: object, **flags: bool) -> int:
        append(bench.store, name, ModelStopRequested(run="fit-1", model="m01"))
        return append(bench.store, name, event, **flags)  # type: ignore[arg-type]

    monkeypatch.setattr(type(bench.store), "append", beaten)
    status, _, page = send(browser, "change", fields)
    assert status == 409
    assert "model m01 of fit-1 is stopped: resume it first" in page
    assert 'value="3"' in page


def test_a_form_of_another_session_is_refused_and_keeps_its_input(bench: Bench, browser: Browser) -> None:
    """As with the start form."""
    _, fields, _ = review(browser, "change", "m01", **{"hp.layers": "3"})
    before = len(bench.store.logs["digits"])
    answer = browser.client.post(
        f"{AT}/change",
        data=fields | {"csrf": "another", "step": "send"},
        base_url="http://127.0.0.1:7080",
        headers={"Accept": "text/html"},
    )
    assert (answer.status_code, len(bench.store.logs["digits"])) == (400, before)
    assert 'value="3"' in answer.text


def test_an_outage_of_the_store_keeps_the_input(bench: Bench, browser: Browser) -> None:
    _, fields, _ = review(browser, "change", "m01", **{"hp.layers": "3"})
    bench.store.is_away = True
    status, _, page = send(browser, "change", fields)
    assert status == 503
    assert "The store stopped answering" in page
    assert 'value="3"' in page


def test_a_form_sent_twice_creates_one_model(bench: Bench, browser: Browser) -> None:
    """A doubled click opens the same model twice. Other values in the same form make another model."""
    _, fields, _ = review(browser, "clone", "m00", **{"hp.layers": "3"})
    before = len(bench.store.logs["digits"])
    leads = {send(browser, "clone", fields)[:2] for _ in range(2)}
    assert leads == {(303, f"{AT}/models/m08?fit=fit-1")}
    assert len(bench.store.logs["digits"]) == before + 1
    answer = browser.post(f"{AT}/clone", fields | {"hp.layers": "4", "step": "review"}, form="/start")
    assert send(browser, "clone", sent(answer.text))[1] == f"{AT}/models/m09?fit=fit-1"
    _, fields, _ = review(browser, "clone", "m00", **{"hp.layers": "3"})
    assert send(browser, "clone", fields)[1] == f"{AT}/models/m10?fit=fit-1"


@pytest.mark.parametrize(
    "event",
    [
        ModelChanged(run="fit-1", model="m01", hyperparams={"learning_rate": 0.06}, by="Bob"),
        PriorityChanged(run="fit-1", model="m01", priority=1, by="Bob"),
        ModelExtended(run="fit-1", model="m01", epochs=9, by="Bob"),
    ],
)
def test_a_clone_inherits_only_reviewed_values(
    bench: Bench, browser: Browser, event: ModelChanged | PriorityChanged | ModelExtended
) -> None:
    """Changes to the parent since the review are shown first."""
    _, fields, _ = review(browser, "clone", "m01", **{"hp.layers": "3"})
    bench.store.append("digits", event)
    bench.monotonic.now += 1
    before = len(bench.store.logs["digits"])
    status, _, page = send(browser, "clone", fields)
    assert (status, len(bench.store.logs["digits"])) == (409, before)
    said = "Its priority is high, as for m01." in difference(page)
    assert said == isinstance(event, PriorityChanged)
    assert send(browser, "clone", sent(page))[0] == 303


def test_several_models_can_be_set_to_one_value(bench: Bench, browser: Browser) -> None:
    """Models that already have the value are skipped."""
    bench.store.append("digits", ModelExtended(run="fit-1", model="m00", epochs=9, by="Bob"))
    bench.store.append("digits", PriorityChanged(run="fit-1", model="m00", priority=1, by="Bob"))
    bench.monotonic.now += 1
    for what, typed in (("extend", {"epochs": "9"}), ("prioritize", {"priority": "high"})):
        before = len(bench.store.logs["digits"])
        status, fields, page = review(browser, what, "m00,m01", **typed)
        assert status == 200
        assert "m01" in difference(page)
        assert "m00" not in difference(page).partition("Show the difference")[0]
        assert send(browser, what, fields)[0] == 303
        assert [event.model for event in bench.store.logs["digits"][before:]] == ["m01"]  # type: ignore[union-attr]


def test_a_partly_applied_command_names_the_models(
    bench: Bench, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user stopped the second model in the meantime."""
    _, fields, _ = review(browser, "extend", "m01,m02", epochs="9")
    append = type(bench.store).append

    def beaten(store: object, name: str, event: ModelExtended, **more: str) -> int:
        if event.model == "m02":
            append(bench.store, name, ModelStopRequested(run="fit-1", model="m02"))
        return append(bench.store, name, event, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(type(bench.store), "append", beaten)
    status, _, page = send(browser, "extend", fields)
    assert status == 409
    assert "The command was partly executed: m01 changed, m02 did not:" in page
    assert "model m02 of fit-1 is stopped" in page


@pytest.mark.parametrize(
    ("what", "model", "name", "text", "says"),
    [
        ("change", "m01", "hp.layers", "[" * 600 + "]" * 600, "nested too deeply"),
        ("change", "m01", "hp.layers", r'["\ud800"]', "a lone surrogate"),
        ("add", "", "hp.layers", r'"\ud800"', "a lone surrogate"),
        ("prioritize", "m01", "priority", "9" * 50, "No priority"),
    ],
)
def test_values_that_the_log_cannot_store_are_refused(
    browser: Browser, what: str, model: str, name: str, text: str, says: str
) -> None:
    """Deeply nested lists, lone surrogates and huge numbers are valid JSON, but the log rejects them."""
    status, fields, page = review(browser, what, model, **{name: text})
    assert (status, says in page) == (422, True)
    assert send(browser, what, fields | {name: text})[0] == 422


def test_a_missing_start_checkpoint_stays_selected(bench: Bench, browser: Browser) -> None:
    """The form does not silently choose another checkpoint."""
    status, fields, page = review(browser, "clone", "m00", start="7")
    assert (status, fields["start"]) == (422, "7")
    assert "the end of epoch 7 (warm)" in text_of(page)
    before = len(bench.store.logs["digits"])
    assert send(browser, "clone", fields)[0] == 422
    assert len(bench.store.logs["digits"]) == before


@pytest.fixture
def conditional(bench: Bench) -> Browser:
    """Open a browser on a grid whose ViT has a patch size and whose CNN has a kernel size; m00 is the CNN."""
    space: Space = {
        "net": ChoiceOf(values=("cnn", "vit")),
        "kernel": ChoiceOf(values=(3,), when={"net": ("cnn",)}),
        "patch": ChoiceOf(values=(4, 8), when={"net": ("vit",)}),
        "batch_size": ChoiceOf(values=(32,)),
    }
    models: tuple[Hyperparameters, ...] = (
        {"net": "cnn", "kernel": 3, "batch_size": 32},
        {"net": "vit", "patch": 4, "batch_size": 32},
        {"net": "vit", "patch": 8, "batch_size": 32},
    )
    bench.store.add(fit_of(models, space=space))
    return bench.signed_in()


CLONE_OF_CNN = "/experiments/nets/clone?model=m00"


def test_a_clone_gets_and_loses_hyperparameters(bench: Bench, conditional: Browser) -> None:
    """The form has a field for each hyperparameter of the space; an empty one is not sent."""
    first = conditional.get(CLONE_OF_CNN).text
    assert "patch others have 4, 8" in text_of(first)
    fields = sent(first) | {"hp.net": "vit", "step": "review"}
    refused = conditional.post(CLONE_OF_CNN, fields, form=CLONE_OF_CNN)
    assert refused.status_code == 422
    said = refused.text.partition('name="hp.patch"')[2].partition("</div>")[0]
    assert "net='vit' also needs 'patch'" in text_of(said)
    answer = conditional.post(CLONE_OF_CNN, fields | {"hp.patch": "8"}, form=CLONE_OF_CNN)
    assert answer.status_code == 200
    shown = difference(answer.text)
    assert "It differs from m00 in 3 values" in shown
    assert "net cnn vit kernel 3 \N{EN DASH} patch \N{EN DASH} 8" in shown
    sends = sent(answer.text) | {"step": "send"}
    assert conditional.post(CLONE_OF_CNN, sends, form=CLONE_OF_CNN).status_code == 303
    event = bench.store.logs["nets"][-1]
    assert isinstance(event, ModelsAdded)
    assert event.models[0].hyperparams == {"net": "vit", "batch_size": 32, "patch": 8}


def test_a_new_model_has_fields_for_the_whole_space(conditional: Browser) -> None:
    """A value that only some models have is a hint, not the default."""
    fields = sent(conditional.get("/experiments/nets/add").text)
    assert {name: fields[name] for name in fields if name.startswith("hp.")} == {
        "hp.net": "",
        "hp.kernel": "",
        "hp.patch": "",
        "hp.batch_size": "32",
    }
