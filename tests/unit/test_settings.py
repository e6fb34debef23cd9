"""Settings that contradict each other are refused, by name and with the remedy."""

from __future__ import annotations

import pytest

from storage_core.errors import InvalidInputError
from storage_core.settings import load_settings


@pytest.mark.parametrize("name", ["LOCKGATE_COMMIT_WINDOW_S", "LOCKGATE_LEASE_RENEW_S"])
def test_a_limit_by_which_the_lease_has_lapsed_already_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # A driver that slept over its hard limit would decide without asking the journal again.
    monkeypatch.setenv(name, "120")
    with pytest.raises(InvalidInputError, match=f"{name} is 120 and LOCKGATE_LEASE_HARD_S 120.*smaller"):
        load_settings()
    monkeypatch.setenv("LOCKGATE_LEASE_HARD_S", "121")
    load_settings()
