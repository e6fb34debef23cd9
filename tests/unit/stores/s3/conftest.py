"""The tests of S3 do not depend on a proxy of the machine that runs them."""

from __future__ import annotations

from urllib.request import getproxies_environment

import pytest


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the proxies of the environment."""
    for scheme in getproxies_environment():
        for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper()):
            monkeypatch.delenv(name, raising=False)
