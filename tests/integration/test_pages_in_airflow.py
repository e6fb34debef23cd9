"""The pages in a real browser, in the frame of a running Airflow: a job is watched, recovered and aborted."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from urllib.parse import urlencode

import axe_playwright_python
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from examples.flights.processes.worker import running_worker
from lockgate import attach_job, open_job
from lockgate.storage_core.blobs.open_blobs import open_blobs
from lockgate.storage_core.commit.job_summary import JobSummary, list_jobs
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.journal.checkpoint.checkpoints import open_checkpoints, take_checkpoint
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.settings import Settings, load_settings
from tests.support.airflow.pages import (
    PATIENCE_MS,
    framed,
    job_page,
    logged_in,
    running_pages,
    window,
)
from tests.support.airflow.services import Services, quoted, sure
from tests.support.cli import write
from tests.support.postgres import Server
from tests.support.soak import rounds

CHROMIUM = shutil.which("chromium")
AXE_CORE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
LOOKS = rounds([("dark", 800)], [*product(("light", "dark"), (1440, 800))])
"""`test_pages_browser.py` has the others in each run; here are the frame and Airflow's switch."""
SCREENSHOTS = Path(os.environ["LOCKGATE_SCREENSHOTS"]) if "LOCKGATE_SCREENSHOTS" in os.environ else None
"""Folder in which the pages' pictures are written, such as docs/images/pages."""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.requires("postgres"),
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt install chromium)"),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def settings(root: Path) -> Settings:
    return load_settings(home=root / "home")


@pytest.fixture(scope="module")
def airflow(root: Path, postgres: Server) -> Iterator[Services]:
    with running_pages(root, postgres.new_database("airflow_pages")) as services:
        yield services


@pytest.fixture(scope="module")
def worker(airflow: Services, root: Path) -> Iterator[None]:
    """Run a worker from the first test that asks for it on."""
    with running_worker(root / "worker.log", {"LOCKGATE_HOME": str(root / "home")}):
        yield


@pytest.fixture(scope="module")
def killed(airflow: Services, root: Path, settings: Settings) -> tuple[str, str]:
    """Start a run whose commit task is killed after the decision; return its destination and the run's id."""
    destination = f"file://{root / 'lake' / 'killed'}"
    conf = {"destination": destination, "complete_by": "threads", "kill": True}
    return destination, airflow.trigger("job_files", conf)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()
    expect.set_options(timeout=5_000)


@pytest.fixture(scope="module")
def admin(browser: Browser, airflow: Services) -> Iterator[Page]:
    with logged_in(browser, airflow, "ada") as page:
        yield page


def only_job(destination: str, settings: Settings) -> JobSummary:
    [job] = list_jobs(destination, settings=settings)
    return job


def press(page: Page, action: str, reason: str | None = None) -> None:
    """Press the button of an action, and confirm when the dry run has answered."""
    frame = framed(page)
    frame.get_by_role("button", name=action, exact=True).click()
    dialog = frame.get_by_role("dialog")
    if reason is not None:
        dialog.get_by_label("Reason").fill(reason)
    dialog.locator("#ask-confirm").click()
    expect(dialog).to_contain_text("Started DAG job_recovery")
    dialog.get_by_role("button", name="Close").click()


def test_a_run_started_by_the_form_is_watched_from_writing_to_committed_without_a_reload(
    admin: Page,
    airflow: Services,
    settings: Settings,
    request: pytest.FixtureRequest,
) -> None:
    root = settings.home.parent
    destination = f"file://{root / 'lake' / 'form'}"
    admin.goto("/dags/dataset_commit")
    admin.get_by_role("button", name="Trigger").first.click()
    form = admin.get_by_role("dialog")
    form.locator('[name="element_source"]').fill(str(root / "in" / "rows.parquet"))
    form.locator('[name="element_destination"]').fill(destination)
    form.get_by_role("button", name="Trigger", exact=True).click()
    expect(form).to_be_hidden()

    admin.goto("/plugin/lockgate")
    link = framed(admin).locator("tr", has_text=destination).locator("a.id")
    link.first.click()
    frame = framed(admin)
    expect(frame.get_by_role("heading", level=1)).to_be_visible()
    expect(frame.locator('.steps [aria-current="step"]')).to_contain_text("writing")
    expect(frame.locator(".badge", has_text="open").first).to_be_visible()
    admin.evaluate("window.same = true")
    frame.locator("body").evaluate("window.same = true")

    request.getfixturevalue("worker")  # without it nothing was committed

    expect(frame.locator(".badge", has_text="committed").first).to_be_visible()
    expect(frame.locator("#receipt")).to_contain_text("30")
    assert admin.evaluate("window.same"), "Airflow's page was loaded again"
    assert frame.locator("body").evaluate("() => window.same"), "the page was loaded again"
    job = only_job(destination, settings)
    assert job.phase is JobPhase.COMMITTED

    [run] = airflow.call("GET", "dags/dataset_commit/dagRuns")["dag_runs"]
    assert airflow.ended_as("dataset_commit", run["dag_run_id"]) == "success"
    log = "\n".join(airflow.log("dataset_commit", run["dag_run_id"], "commit"))
    assert f"{airflow.url}{job_page(destination, job.job_id)}" in log
    assert re.search(r"receipt.*\n.*\n? *destination +file://.*rows +30\n", log, re.DOTALL)
    [turn] = airflow.lockgate("GET", f"destinations/log?{urlencode({'destination': destination})}")["items"]
    assert turn["origin"]["triggered_by"] == "ada"


@pytest.mark.soak
def test_a_killed_driver_needs_you_and_the_pressed_recovery_commits_and_announces(
    admin: Page, airflow: Services, settings: Settings, worker: None, killed: tuple[str, str]
) -> None:
    destination, run_id = killed
    assert airflow.ended_as("job_files", run_id) == "failed"
    assert "3 task commits sent as batch" in " ".join(airflow.log("job_files", run_id, "tasks"))
    job = only_job(destination, settings)
    assert (job.phase, airflow.state("job_files", run_id, "commit")) == (JobPhase.DECIDED, "failed")
    task = f"dags/job_files/dagRuns/{quoted(run_id)}/taskInstances/commit"
    button = airflow.call("GET", f"{task}/links")["extra_links"]["Lockgate job"]
    assert button.endswith(f"job={quoted(job.job_id)}"), "a killed task has its button, too"

    admin.goto("/")
    card = admin.get_by_test_id("lockgate-card")
    expect(card).to_contain_text("1 job needs you")
    expect(card).to_contain_text("decided but has not ended")
    card.get_by_role("link", name=re.compile("needs you")).click()
    row = framed(admin).locator("tr", has_text=job.job_id)
    expect(row.locator(".badge", has_text="needs you")).to_be_visible()
    row.locator("a.id").click()
    press(admin, "Recover")

    frame = framed(admin)
    expect(frame.locator(".badge", has_text="committed").first).to_be_visible()
    expect(frame.get_by_role("button", name="Recover", exact=True)).to_have_count(0)

    def announced() -> bool | None:
        events = airflow.call("GET", "assets/events?limit=100")["asset_events"]
        return [e["source_dag_id"] for e in events if e["extra"].get("job_id") == job.job_id] == [
            "job_recovery"
        ] or None

    sure(announced, "the Asset has no event of the job")
    admin.goto("/")
    expect(admin.get_by_test_id("lockgate-card")).to_contain_text("No job needs you")


@pytest.mark.soak
def test_an_undecided_job_is_aborted_by_its_page(admin: Page, root: Path, settings: Settings) -> None:
    job = open_job(f"file://{root / 'lake' / 'undecided'}", "undecided", settings=settings)
    write(job)
    job.suspend()
    admin.goto(job_page(job.destination, job.job_id))

    press(admin, "Abort", "the source was wrong")

    expect(framed(admin).locator(".badge", has_text="failed").first).to_be_visible()
    expect(framed(admin).locator("#standing")).to_contain_text("the source was wrong; by ada")
    attached = attach_job(job.destination, JobId(job.job_id), settings=settings)
    assert attached.phase() is JobPhase.FAILED


@pytest.fixture(scope="module")
def audited(airflow: Services, root: Path, worker: None) -> tuple[str, str]:
    """Run the pipeline with a suite that its rows fail; return its destination and the run's id."""
    destination = f"file://{root / 'lake' / 'audited'}"
    between = {"column": "row", "min_value": 0, "max_value": 9}
    suite = {
        "name": "rows",
        "expectations": [{"type": "expect_column_values_to_be_between", "kwargs": between}],
    }
    conf = {"source": str(root / "in" / "rows.parquet"), "destination": destination, "suite": suite}
    run_id = airflow.trigger("dataset_commit", conf)
    assert airflow.ended_as("dataset_commit", run_id) == "failed"
    assert airflow.state("dataset_commit", run_id, "audit") == "failed"
    return destination, run_id


@pytest.mark.soak
def test_the_data_docs_of_a_failed_audit_are_its_expectations_with_sample_values(
    admin: Page, airflow: Services, settings: Settings, audited: tuple[str, str]
) -> None:
    destination, run_id = audited
    job = only_job(destination, settings)
    task = f"dags/dataset_commit/dagRuns/{quoted(run_id)}/taskInstances/audit"
    links = airflow.call("GET", f"{task}/links")["extra_links"]
    assert links["Lockgate job"].endswith(f"job={quoted(job.job_id)}")
    assert links["Data Docs"].endswith(f"job={quoted(job.job_id)}#audit")

    admin.goto(f"/dags/dataset_commit/runs/{quoted(run_id)}/tasks/audit/details")
    expect(admin.get_by_role("link", name="Lockgate job")).to_be_visible()
    admin.get_by_role("link", name="Data Docs").click()

    audit = framed(admin).locator("#audit")
    heading = audit.get_by_role("heading", level=2)
    expect(heading).to_contain_text("failed")
    expect(heading).to_be_in_viewport()
    failing = audit.get_by_role("row").filter(has_text="expect_column_values_to_be_between")
    expect(failing).to_contain_text("row")
    expect(failing.locator("code.sample").first).to_have_text(re.compile(r"^[12][0-9]$"))


@pytest.mark.parametrize(("task", "tab"), [("", "lockgate-run"), ("/tasks/setup", "lockgate-task")])
@pytest.mark.soak
def test_a_tab_of_a_run_and_of_an_unmapped_task_shows_their_job(
    admin: Page, settings: Settings, audited: tuple[str, str], task: str, tab: str
) -> None:
    destination, run_id = audited
    job = only_job(destination, settings)
    admin.goto(f"/dags/dataset_commit/runs/{quoted(run_id)}{task}")

    admin.locator(f"a[href$='/plugin/{tab}']").click()

    expect(framed(admin).get_by_role("link", name=job.job_id)).to_be_visible()


@pytest.mark.soak
def test_a_link_to_a_page_stays_in_the_frame_and_one_to_airflow_leaves_it(
    admin: Page, settings: Settings, audited: tuple[str, str]
) -> None:
    destination, run_id = audited
    job = only_job(destination, settings)
    tab = f"/dags/dataset_commit/runs/{quoted(run_id)}/plugin/lockgate-run"
    admin.goto(tab)
    framed(admin).get_by_role("link", name=job.job_id).click()
    expect(framed(admin).get_by_role("heading", level=1)).to_contain_text(job.job_id)
    expect(framed(admin).locator("#about")).to_contain_text("triggered by ada")
    assert admin.url.endswith(tab)

    framed(admin).locator("#about").get_by_role("link", name="dataset_commit · setup").click()

    admin.wait_for_url(lambda url: url.endswith("/tasks/setup"))
    expect(admin.get_by_text("JobSetupOperator").first).to_be_visible()


@pytest.fixture(scope="module")
def waiting(root: Path, settings: Settings) -> tuple[str, str]:
    """Return the destination and id of a job that may be recovered and aborted."""
    job = open_job(f"file://{root / 'lake' / 'waiting'}", "waiting", settings=settings)
    write(job)
    job.suspend(0)
    return job.destination, job.job_id


@pytest.mark.soak
def test_a_viewer_sees_the_pages_without_buttons(
    browser: Browser, airflow: Services, admin: Page, waiting: tuple[str, str]
) -> None:
    admin.goto(job_page(*waiting))
    expect(framed(admin).get_by_role("button")).to_have_text(["Recover", "Abort"])

    with logged_in(browser, airflow, "vera") as viewer:
        for path in (job_page(*waiting), "/plugin/lockgate"):
            viewer.goto(path)
            expect(framed(viewer).get_by_text(waiting[1]).first).to_be_visible()
            expect(framed(viewer).locator("button[data-action], dialog")).to_have_count(0)


@pytest.mark.soak
def test_an_anonymous_caller_sees_nothing(
    browser: Browser, airflow: Services, waiting: tuple[str, str]
) -> None:
    with window(browser, airflow) as context:
        page = context.new_page()
        page.goto(job_page(*waiting))
        expect(page.locator('input[name="password"]')).to_be_visible()
        for path in ("jobs", "journal", "blobs", "destinations", "api/v1/jobs", "api/v1/openapi.json"):
            answer = context.request.get(f"/lockgate/{path}")
            assert (answer.status, waiting[1] in answer.text()) == (401, False), path


@pytest.fixture(scope="module")
def done(root: Path, settings: Settings) -> tuple[str, str]:
    """Return the destination and id of a committed job."""
    destination = f"file://{root / 'lake' / 'done'}"
    job = open_job(destination, "done", settings=settings)
    write(job)
    job.commit()
    return job.destination, job.job_id


@pytest.fixture(scope="module")
def writing(root: Path, settings: Settings) -> Iterator[tuple[str, str]]:
    """Return the destination and id of a job that is being written."""
    job = open_job(f"file://{root / 'lake' / 'writing'}", "writing", settings=settings)
    write(job)
    yield job.destination, job.job_id
    job.abort("the tests have ended")


@pytest.fixture(scope="module")
def shown(
    audited: tuple[str, str],
    waiting: tuple[str, str],
    writing: tuple[str, str],
    done: tuple[str, str],
    settings: Settings,
) -> dict[str, str]:
    """Return the address of each page, by the name of its picture: a tab's in Airflow, others below ours."""
    with open_blobs(settings) as blobs:
        blobs.put(b"def rows(): ...", job_id="libraries-of-rows", owners=("viewer:ada",), name="rows.py")
    journal = configured_journal(settings)
    assert journal is not None
    with journal.reading() as reading:
        take_checkpoint(reading, open_checkpoints(settings))
    failed = only_job(audited[0], settings)
    run = f"/dags/dataset_commit/runs/{quoted(audited[1])}"
    return {
        "jobs": "jobs",
        "job": page_of(*waiting),
        "writing": page_of(*writing),
        "committed": page_of(*done),
        "audit": f"{page_of(audited[0], failed.job_id)}#audit",
        "destination": f"destination?{urlencode({'destination': done[0]})}",
        "uploads": f"uploads?{urlencode({'destination': waiting[0]})}",
        "destinations": "destinations",
        "blobs": "blobs",
        "journal": "journal",
        "run": f"{run}/plugin/lockgate-run",
        "task": f"{run}/tasks/setup/plugin/lockgate-task",
    }


def page_of(destination: str, job_id: str) -> str:
    return f"job?{urlencode({'destination': destination, 'job': job_id})}"


def show(page: Page, path: str) -> None:
    """Show a page in Airflow's frame.

    Airflow's own page is loaded again for a tab and for a picture only: it takes seconds, ours does not.
    """
    ours = (frame for frame in page.frames if frame.parent_frame is not None and "/lockgate/" in frame.url)
    frame = next(ours, None)
    if path.startswith("/") or frame is None or SCREENSHOTS is not None:
        page.goto(path if path.startswith("/") else f"/plugin/lockgate/lockgate/{path}")
    else:
        frame.goto(f"/lockgate/{path}")


WIDE = """
() => [...document.querySelectorAll("html, .jobs")].map(one => one.scrollWidth - one.clientWidth)
"""
"""By how many pixels the page, and a list of jobs in it, are wider than what shows them."""


@pytest.mark.parametrize("look", LOOKS, ids=str)
@pytest.mark.soak
def test_every_page_is_accessible_and_fits_airflows_frame(
    admin: Page, shown: dict[str, str], look: tuple[str, int]
) -> None:
    theme, width = look
    admin.set_viewport_size({"width": width, "height": 900})
    admin.evaluate("theme => localStorage.setItem('theme', theme)", theme)
    found = {}
    if SCREENSHOTS is not None:
        admin.goto("/")
        expect(admin.get_by_test_id("lockgate-card")).to_contain_text("needs you")
        admin.screenshot(path=SCREENSHOTS / f"home-{theme}-{width}.png")
    for name, path in shown.items():
        show(admin, path)
        expect(framed(admin).get_by_role("heading", level=1)).to_have_count(1)
        expect(framed(admin).locator("html")).to_have_class(theme)
        body = framed(admin).locator("body")
        if SCREENSHOTS is not None:
            admin.screenshot(path=SCREENSHOTS / f"{name}-{theme}-{width}.png")
        violations = body.evaluate(
            f"async () => {{ {AXE_CORE}; const found = await axe.run(); return found.violations; }}"
        )
        serious = [rule["id"] for rule in violations if rule["impact"] in {"serious", "critical"}]
        wide = body.evaluate(WIDE)
        if serious or any(by > 0 for by in wide):
            found[name] = (serious, wide)
    assert found == {}
