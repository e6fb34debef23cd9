"""The documentation site: `make docs-site` builds it without a warning, and it needs no network."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SITE = REPOSITORY / "build" / "site"
CHROMIUM = shutil.which("chromium")

pytestmark = [pytest.mark.integration, pytest.mark.soak]


@pytest.fixture(scope="module", autouse=True)
def site() -> None:
    subprocess.run(["make", "docs-site"], cwd=REPOSITORY, check=True, timeout=280)


def test_no_page_loads_anything_from_another_host() -> None:
    loaded = re.compile(
        r'<(?:script|img|iframe)[^>]*src="https?:|<link[^>]*rel="stylesheet"[^>]*href="https?:'
    )
    assert [page.name for page in SITE.rglob("*.html") if loaded.search(page.read_text())] == []


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt install chromium)")
def test_the_search_finds_a_section_although_the_site_is_opened_from_files() -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(offline=True).new_page()
        page.goto((SITE / "index.html").as_uri())
        page.keyboard.press("/")
        page.keyboard.type("LockgateSweepBehind")
        page.locator(".md-search-result__link").first.click()
        page.wait_for_url("**/guides/runbook.html*")
        browser.close()
