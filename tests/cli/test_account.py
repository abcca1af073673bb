"""``cerebro token``, ``quota`` and ``audit`` against a real store with users."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from cerebro.cli.program import main
from cerebro.contract.accounts.identity import TOKEN
from tests.kvs_api.real import Service
from tests.kvs_api.users.people import OPERATOR, SERVICES


@pytest.fixture
def own_service(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A store with users; the environment has its address and the operator's token."""
    with Service(service.database, has_users=True, service_tokens=SERVICES, token=OPERATOR) as users_service:
        monkeypatch.setenv("CEREBRO_SERVER", users_service.address)
        monkeypatch.setenv("CEREBRO_TOKEN", OPERATOR)
        yield users_service


def test_tokens_are_created_listed_and_revoked(
    own_service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standard output has only the secret, once; users list only their tokens."""
    requests = [
        "token",
        "create",
        "--for",
        "ada",
        "--role",
        "member",
        "--projects",
        "vision,text",
        "--days",
        "7",
    ]
    assert main(requests) == 0
    output = capsys.readouterr()
    found = TOKEN.fullmatch(output.out.strip())
    assert found
    assert f"Token {found[1]} of ada, member" in output.err
    monkeypatch.setenv("CEREBRO_TOKEN", output.out.strip())
    assert main(["token", "list"]) == 0
    listed = capsys.readouterr().out
    assert found[1] in listed
    assert "vision,text" in listed
    assert found[2] not in listed
    assert main(["token", "create", "--role", "admin"]) == 1
    assert "its tokens cannot be admin" in capsys.readouterr().err
    assert main(["token", "create", "--days", "400"]) == 1
    assert "days" in capsys.readouterr().err
    assert main(["token", "revoke", f"ck_{found[1]}"]) == 0
    monkeypatch.setenv("CEREBRO_TOKEN", OPERATOR)
    assert main(["token", "revoke", found[1]]) == 1
    capsys.readouterr()
    assert main(["audit"]) == 0
    assert f"revoked token {found[1]}" in capsys.readouterr().out


def test_quotas_are_set_and_listed(own_service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    """Quotas can also be removed; invalid values are reported."""
    assert main(["quota", "vision", "--open-runs", "3", "--worker-hours", "12.5", "--bytes", "1.5GB"]) == 0
    assert "vision   0 of 3     0 of 12.5         any              0 B of 1.5 GB" in capsys.readouterr().out
    assert main(["quota", "vision", "--none"]) == 0
    assert "No quota is set" in capsys.readouterr().out
    for wrong in (
        ["quota", "vision"],
        ["quota", "--models", "3"],
        ["quota", "vision", "--models", "-3"],
        ["quota", "vision", "--bytes", "much"],
    ):
        assert main(wrong) == 1
        assert "cerebro: " in capsys.readouterr().err


def test_notification_targets_are_added_listed_and_removed(
    own_service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The address may come from standard input; nothing prints its secrets."""
    monkeypatch.setattr("sys.stdin", io.StringIO("slack://T0secret0T/B0other0/C0third0\n"))
    assert main(["notify", "list"]) == 0
    assert "There are no notification targets" in capsys.readouterr().out
    assert main(["notify", "add", "-", "--for", "failed, paused", "--all"]) == 0
    added = capsys.readouterr().out
    target = added.split()[0]
    assert f"{target} reports failed, paused of all runs to slack://.... Send a test message" in added
    assert main(["notify", "list"]) == 0
    listed = capsys.readouterr().out
    assert f"{target}  slack://...  all runs  failed,paused  admin" in listed
    assert main(["notify", "remove", target]) == 0
    assert main(["notify", "remove", target]) == 1
    assert f"there is no notification target '{target}'" in capsys.readouterr().err
    for wrong in (["T0secret0T"], ["slack://T0secret0T", "--for", "lunch"], ["syslog://T0secret0T"]):
        assert main(["notify", "add", *wrong]) == 1
        problem = capsys.readouterr().err
        assert problem.startswith("cerebro: ")
        assert "T0secret0T" not in problem
    main(["audit"])
    assert "T0secret0T" not in capsys.readouterr().out + added + listed
