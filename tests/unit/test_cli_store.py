"""`lockgate store check`: whether a store is one for jobs."""

from __future__ import annotations

import pytest

from storage_core.settings import Settings
from storage_core.stores import open_store
from tests.cli_world import Run, document


def test_store_check_of_a_local_store_finds_every_promise_kept_and_leaves_nothing(
    run: Run, destination: str, settings: Settings
) -> None:
    shown = run("store", "check", destination)
    checked = document(run("store", "check", destination, "--json"))

    assert shown.exit_code == 0
    assert shown.stdout.endswith("can hold jobs\n")
    assert checked["usable"]
    assert all(finding["ok"] for finding in checked["report"]["findings"])
    store = open_store(destination, settings)
    assert [*store.pages(), *store.upload_pages()] == []


def test_store_check_of_a_store_without_conditional_create_exits_with_7(
    run: Run, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from storage_core.stores import Capabilities, probe

    found = probe.ProbeReport(
        capabilities=Capabilities(conditional_create=False, conditional_put=False, conditional_delete=False),
        findings=[probe.Finding(name="create", ok=False, detail="a second create succeeded")],
    )
    monkeypatch.setattr(probe, "probe", lambda _store: found)

    result = run("store", "check", destination)

    assert result.exit_code == 7
    assert "a second create succeeded" in result.stdout
