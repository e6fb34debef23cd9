"""The images of docker/ and the services of its compose file, on a Docker engine; run by `make images-test`.

It needs no image registry: the images beneath are stand-ins from Debian's packages, with this machine's
certificates. The tests of this file build on one another, in their order.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from examples.flights.data import flights
from scripts.stack import DOCKER, main
from tests.integration.stack.services import DESTINATION, Stack, docker, until

CHROMIUM = shutil.which("chromium")
LARGEST_BYTES = 900 * 10**6
TOOLS = ("pytest", "moto", "mypy", "ruff", "playwright")
PATIENCE_MS = 120_000
OF_AIRFLOW = {"airflow-triggerer"}
"""It ended after 1 and after 11 seconds, as its own loop came round."""

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.requires("docker")]


def test_the_workers_image_is_small_and_both_hold_no_tool_of_the_tests(images: None) -> None:
    of_ours, beneath = (
        int(docker("image", "inspect", "--format", "{{.Size}}", name))
        for name in ("lockgate/workers:0.1.0", "lockgate-stand-in/python")
    )
    print(f"workers: {of_ours / 10**6:.0f} MB, {beneath / 10**6:.0f} of them the stand-in for Python's image")
    assert of_ours < LARGEST_BYTES
    for image in ("workers", "airflow"):
        found = f"import importlib.util as u; print([n for n in {TOOLS} if u.find_spec(n)])"
        command = ("run", "--rm", "--entrypoint", "python", f"lockgate/{image}:0.1.0", "-c", found)
        assert docker(*command) == "[]", image
        assert docker("run", "--rm", "--entrypoint", "id", f"lockgate/{image}:0.1.0", "--user") == "50000"


def test_a_second_up_changes_nothing(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    before = {name: one["ID"] for name, one in stack.containers().items()}
    assert main(["up"]) == 0
    assert {name: one["ID"] for name, one in stack.containers().items()} == before
    assert "password" not in capsys.readouterr().out


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt install chromium)")
def test_the_form_in_a_browser_writes_all_flights_and_the_page_shows_the_job(
    stack: Stack, tmp_path: Path
) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(base_url=stack.airflow, viewport={"width": 1440, "height": 900})
        page.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        page.goto("/")
        page.locator('input[name="username"]').fill("user")
        page.locator('input[name="password"]').fill(stack.password("user"))
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(lambda url: "/login" not in url)

        page.goto("/dags/dataset_commit")
        page.get_by_role("button", name="Trigger").first.click()
        form = page.get_by_role("dialog")
        form.locator('[name="element_source"]').fill("/data/flights.csv")
        form.locator('[name="element_destination"]').fill("s3://lake/by-form")
        form.locator('[id="element_source_format"]').get_by_role("combobox").click()
        page.get_by_role("option", name="csv").click()
        form.get_by_text("Rows and columns").click()
        form.locator('[id="element_source_options"] .view-lines').click()
        page.keyboard.press("Control+A")
        page.keyboard.insert_text(json.dumps(flights.READ_OPTIONS))
        page.keyboard.press("Control+Shift+End")  # what the editor has closed by itself
        page.keyboard.press("Delete")
        form.get_by_role("button", name="Trigger", exact=True).click()
        expect(form).to_be_hidden()

        page.goto("/plugin/lockgate")
        frame = page.frame_locator('iframe[src*="lockgate/"]')
        frame.locator("tr", has_text="s3://lake/by-form").locator("a.id").first.click()
        expect(frame.locator("#receipt")).to_contain_text(f"{flights.ROWS:,}", timeout=600_000)
        expect(frame.locator(".badge").first).to_have_text("committed")
        page.screenshot(path=tmp_path / "job.png")
        print(f"picture: {tmp_path / 'job.png'}")
        browser.close()


def test_the_demos_run_on_two_spark_workers_writes_all_flights(stack: Stack) -> None:
    receipt = stack.receipt(stack.trigger(stack.flights() | {"master": "spark://spark-master:7077"}))
    assert receipt["rows"] == flights.ROWS
    assert receipt["job_id"] in stack.lockgate("jobs", "list", DESTINATION)


def test_prometheus_answers_each_query_of_the_dashboard_with_a_true_figure(stack: Stack) -> None:
    before = committed_tasks()
    with stack.storm() as storm:
        until(lambda: len(storm.jobs()) >= 5)
    tasks = committed_tasks()
    assert tasks == before + len(storm.jobs())
    blobs = sum(one["what"] == "blob" for one in storm.answers)
    stack.lockgate("journal", "checkpoint")
    dashboard = json.loads((DOCKER / "grafana" / "lockgate.json").read_text())
    queries = {
        target["expr"].replace("$journal", ".*"): panel["title"]
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    }
    size = stack.inside("journal", "psql", "-U", "postgres", "-Atc", "select pg_database_size('lockgate')")
    true = {
        "Jobs that need a person": lambda found: found == {(): 0},
        "Blocked destinations": lambda found: found == {(): 0},
        "Oldest decision not carried out": lambda found: found == {(): 0},
        "Safe mode": lambda found: found == {(): 0},
        "Jobs that have not ended": lambda found: sum(found.values()) == 0,
        "Size of the database": lambda found: all(0 < one <= int(size) for one in found.values()),
        "Age of the newest checkpoint": lambda found: all(0 <= one < 600 for one in found.values()),
        "Observers behind": lambda found: len(found) == 1 and all(one < 30 for one in found.values()),
        "Messages that wait": lambda found: found == {("commit",): 0, ("recovery",): 0, ("sweep",): 0},
        "Tasks that run, or were killed": lambda found: found and set(found.values()) == {0},
        "Sweeps and recoveries that failed": lambda found: not any(found.values()),
        "Tasks ended": lambda found: found[("success", "lockgate.commit_task")] == tasks,
        "Requests": lambda found: found[("ok", "put")] >= blobs,
    }

    def answered() -> dict[str, object]:
        # A counter says how many there were; the panel shows its rate.
        asked = {query: re.sub(r"rate\((.+?)\[\$__\w+\]\)", r"\1", query) for query in queries}
        return {query: stack.figures(asked[query].replace("$__rate_interval", "1m")) for query in queries}

    def wrong() -> list[str]:
        found = answered()
        return [
            f"{title}: {found[query]}"
            for query, title in queries.items()
            if not (true[title](found[query]) if title in true else found[query])
        ]

    until(lambda: not wrong())
    for query, found in answered().items():
        print(f"{queries[query]}: {found}")


def committed_tasks() -> int:
    """Return how many tasks the two workers say that they have committed."""
    ask = "from urllib.request import urlopen as u; print(u('http://127.0.0.1:9465/metrics').read().decode())"
    lines = [
        line
        for index in ("1", "2")
        for line in docker("compose", "exec", "-T", "--index", index, "worker", "python", "-c", ask).split(
            "\n"
        )
        if line.startswith("lockgate_worker_task_seconds_count{")
    ]
    return sum(
        int(float(line.rpartition(" ")[2]))
        for line in lines
        if '"lockgate.commit_task"' in line and '"success"' in line
    )


def test_services_end_within_ten_seconds_of_sigterm(stack: Stack) -> None:
    slow = {}
    for name, one in stack.containers().items():
        if one["State"] == "running":
            began_s = time.monotonic()
            docker("stop", "--time", "60", name)
            seconds = time.monotonic() - began_s
            code = stack.containers()[name]["ExitCode"]
            print(f"{one['Service']}: {seconds:.1f} s, exit code {code}")
            limit_s = 30 if one["Service"] in OF_AIRFLOW else 10
            if seconds > limit_s or code not in {0, 143}:
                slow[name] = (seconds, code)
    assert main(["up"]) == 0
    assert not slow


def test_down_leaves_named_volumes_and_up_finds_the_data(stack: Stack) -> None:
    jobs = stack.lockgate("jobs", "list", DESTINATION)
    assert main(["down"]) == 0
    assert stack.containers() == {}
    volumes = docker("volume", "ls", "--quiet", "--filter", "name=lockgate-images-test").split()
    assert all(name.startswith("lockgate-images-test_") for name in volumes)
    assert main(["up"]) == 0
    assert stack.lockgate("jobs", "list", DESTINATION) == jobs
