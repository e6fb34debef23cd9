"""The pages in a real browser: `lockgate ui` over real jobs of a directory."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import axe_playwright_python
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from lockgate import attach_job, open_job
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.settings import Settings
from tests.support.cli import committed_job, lapsed_job, write
from tests.support.soak import rounds

CHROMIUM = shutil.which("chromium")
AXE_CORE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
UI = """
from lockgate.plugins.loopback.ui_command import serve
serve(port=0, allow_actions=True, open_browser=False)
"""
SIZES = {"wide": (1440, 900), "narrow": (800, 900)}
LOOKS = rounds([("dark", "narrow")], [*product(("light", "dark"), SIZES)])

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt install chromium)"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(home=tmp_path_factory.mktemp("pages") / "home")


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


@pytest.fixture(scope="module")
def address(settings: Settings) -> Iterator[str]:
    """The address that `lockgate ui --allow-actions` prints; its jobs are those of all tests."""
    environment = {**os.environ, "LOCKGATE_HOME": str(settings.home)}
    with subprocess.Popen(
        [sys.executable, "-c", UI], stdout=subprocess.PIPE, text=True, env=environment
    ) as served:
        assert served.stdout is not None
        yield served.stdout.readline().strip()
        served.send_signal(signal.SIGINT)


@pytest.fixture
def pages(address: str, browser: Browser) -> Iterator[Page]:
    """A window of a person who has followed the printed address."""
    context = browser.new_context(base_url=address.partition("/lockgate")[0])
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.goto(address)
    yield page
    context.close()


def job_page(destination: str, job_id: str) -> str:
    return f"/lockgate/job?destination={destination}&job={job_id}"


def test_a_job_page_follows_a_job_from_writing_to_committed_without_a_reload(
    lake: str, settings: Settings, pages: Page
) -> None:
    job = open_job(lake, "sales", settings=settings)
    write(job)
    pages.goto(job_page(job.destination, job.job_id))
    expect(pages.get_by_role("heading", level=1)).to_contain_text(job.job_id)
    expect(pages.locator(".badge", has_text="open").first).to_be_visible()
    pages.evaluate("window.same = true")

    job.commit()

    expect(pages.locator(".badge", has_text="committed").first).to_be_visible()
    assert pages.evaluate("window.same"), "the page was loaded again"


def test_a_lapsed_job_is_listed_first_and_the_dialog_recovers_it(
    lake: str, settings: Settings, pages: Page
) -> None:
    lapsed = lapsed_job(lake, settings, "lost-first")
    pages.goto("/lockgate/jobs")
    attention = pages.locator("section.attention")
    expect(attention).to_contain_text(re.compile(r"jobs? needs? you"))
    attention.get_by_role("link", name=lapsed.job_id).click()

    pages.get_by_role("button", name="Recover").press("Enter")
    dialog = pages.get_by_role("dialog")
    expect(dialog).to_be_visible()
    confirm = dialog.locator("#ask-confirm")
    expect(confirm).to_be_enabled()  # the dry run has answered
    assert attach_job(lake, JobId(lapsed.job_id), settings=settings).phase() is JobPhase.OPEN
    confirm.press("Enter")

    expect(pages.locator(".badge", has_text="failed").first).to_be_visible()
    assert attach_job(lake, JobId(lapsed.job_id), settings=settings).phase() is JobPhase.FAILED


def test_a_destination_is_reverted_by_a_second_press_after_its_figures(
    lake: str, settings: Settings, pages: Page
) -> None:
    committed_job(lake, settings, "kept")
    destination = committed_job(lake, settings, "undone").destination
    pages.goto(f"/lockgate/destination?destination={destination}")
    history = pages.locator("#history")
    expect(history.locator("tbody tr").first).to_contain_text("its files are live")
    history.get_by_role("button", name="Revert").press("Enter")
    expect(pages.locator("#ask-answer")).to_contain_text("1 files with")
    expect(history.locator("tbody tr")).to_have_count(2)
    pages.locator("#ask-confirm").press("Enter")

    pages.wait_for_function(
        """(address) => fetch(address).then((answer) => answer.json())
        .then((page) => page.items.length === 3 && page.items[0].mode === "revert")""",
        arg=f"/lockgate/api/v1/destinations/log?destination={destination}",
    )


@pytest.mark.parametrize(("theme", "size"), LOOKS)
def test_every_page_is_accessible_fits_its_window_and_complains_of_nothing(
    theme: str, size: str, lake: str, settings: Settings, pages: Page
) -> None:
    job, lapsed = (
        committed_job(lake, settings, "<script>alert(1)</script>"),
        lapsed_job(lake, settings, "lost"),
    )
    complaints: list[str] = []
    pages.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    pages.on("pageerror", lambda error: complaints.append(str(error)))
    width, height = SIZES[size]
    pages.set_viewport_size({"width": width, "height": height})
    pages.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    for path in (
        "/lockgate/jobs",
        job_page(job.destination, job.job_id),
        job_page(lapsed.destination, lapsed.job_id),
        "/lockgate/destinations",
        f"/lockgate/destination?destination={job.destination}",
        f"/lockgate/uploads?destination={job.destination}",
        "/lockgate/blobs",
        "/lockgate/journal",
    ):
        pages.goto(path)
        expect(pages.get_by_role("heading", level=1)).to_have_count(1)
        assert pages.evaluate("document.documentElement.scrollWidth") <= width, path
        found = pages.evaluate(f"{AXE_CORE}; axe.run().then((found) => found.violations)")
        assert [(rule["id"], rule["nodes"][0]["html"]) for rule in found] == [], path
    assert complaints == []


FOCUSED = """() => {
  const found = document.activeElement, style = getComputedStyle(found), box = found.getBoundingClientRect();
  const name = (found.ariaLabel || found.innerText || found.name || found.id).trim();
  return {
    index: [...document.querySelectorAll("*")].indexOf(found),
    name: `${found.tagName} ${name}`.slice(0, 80),
    isPage: found === document.body || found === document.documentElement,
    isSeen: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1
      && box.width > 0 && box.height > 0 && box.bottom > 0 && box.top < innerHeight,
  };
}"""
CONTROLS = """() => [...document.querySelectorAll(
  "a[href], button, input, select, summary, [tabindex='0']"
)].filter((one) => !one.disabled && one.checkVisibility()).map(
  (one) => [...document.querySelectorAll("*")].indexOf(one)
)"""


@pytest.mark.soak
def test_every_control_of_every_page_is_reached_by_tab_in_reading_order_and_seen(
    lake: str, settings: Settings, pages: Page
) -> None:
    job, lapsed = committed_job(lake, settings), lapsed_job(lake, settings, "lost")
    for path in (
        "/lockgate/jobs",
        job_page(job.destination, job.job_id),
        job_page(lapsed.destination, lapsed.job_id),
        "/lockgate/destinations",
        f"/lockgate/destination?destination={job.destination}",
        "/lockgate/uploads",
        f"/lockgate/uploads?destination={job.destination}",
        f"/lockgate/uploads?destination={job.destination}&owner={lapsed.job_id}",
        "/lockgate/blobs",
        "/lockgate/journal",
    ):
        pages.goto(path)
        controls = pages.evaluate(CONTROLS)
        reached = []
        for _ in range(len(controls) + 1):
            pages.keyboard.press("Tab")
            focused = pages.evaluate(FOCUSED)
            if focused["isPage"] or focused["index"] in reached[:1]:
                break  # the focus has left the page at its end, for the browser or its beginning: no trap
            assert focused["isSeen"], (path, focused)
            reached.append(focused["index"])
        assert reached == controls, (path, focused)


def test_enter_follows_links_and_opens_details_and_space_presses_buttons(
    lake: str, settings: Settings, pages: Page
) -> None:
    lapsed = lapsed_job(lake, settings, "lost")
    pages.goto("/lockgate/jobs")
    pages.keyboard.press("Tab")
    expect(pages.get_by_role("link", name="Skip to the content")).to_be_focused()
    pages.keyboard.press("Enter")
    expect(pages.locator("#content")).to_be_focused()
    job = pages.get_by_role("link", name=lapsed.job_id).first
    while not job.evaluate("(link) => link === document.activeElement"):
        pages.keyboard.press("Tab")
        assert not pages.evaluate(FOCUSED)["isPage"]
    pages.keyboard.press("Enter")
    opener = pages.get_by_role("button", name="Recover")
    expect(opener).to_be_visible()
    opener.focus()
    pages.keyboard.press("Space")
    dialog = pages.get_by_role("dialog")
    expect(dialog).to_be_visible()
    expect(dialog.locator("#ask-confirm")).to_be_enabled()  # the dry run has answered
    for _ in range(4):
        pages.keyboard.press("Tab")
        assert (
            dialog.evaluate("(ask) => ask.contains(document.activeElement)")
            or pages.evaluate(FOCUSED)["isPage"]
        )
    dialog.get_by_role("button", name="Cancel").press("Space")
    expect(dialog).to_be_hidden()
    expect(opener).to_be_focused()

    committed = committed_job(lake, settings)
    pages.goto(f"/lockgate/destination?destination={committed.destination}")
    numbers = pages.locator("details").first
    numbers.locator("summary").focus()
    pages.keyboard.press("Enter")
    expect(numbers).to_have_attribute("open", "")
    pages.keyboard.press("Space")
    expect(numbers).not_to_have_attribute("open", "")
