"""A running Airflow for tests of the pages in a browser: its users, its DAGs, and a window that logs in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pyarrow as pa
from playwright.sync_api import Browser, BrowserContext, FrameLocator, Page
from pyarrow import parquet

from examples.flights.processes.worker import running_broker
from lockgate.operators.dag_files import install_stubs
from lockgate.storage_core.settings import load_settings
from tests.support.airflow.services import Services, running_airflow

PATIENCE_MS: Final = 120_000
"""Limit of every step in the browser: an unused machine needs a fraction of it."""

ROLES: Final = {"ada": "admin", "vera": "viewer"}
JOB_FILES: Final = Path(__file__).parents[2] / "integration" / "job_dags" / "job_files.py"


@contextmanager
def running_pages(root: Path, database: str) -> Iterator[Services]:
    """Run Airflow with our DAGs, a broker and a triggerer, without a worker; the caller is an administrator.

    Args:
        root: Folder of everything: `in` has a source, destinations are below `lake`.
        database: URL of an empty PostgreSQL database.
    """
    dags = root / "dags"
    dags.mkdir()
    install_stubs(dags)
    # It defines `job_recovery`, too.
    shutil.copy(JOB_FILES, dags)
    (dags / "lockgate_job_recovery.py").unlink()
    (root / "in").mkdir()
    rows = {"row": list(range(30)), "city": [f"city {n}" for n in range(30)]}
    parquet.write_table(pa.table(rows), root / "in" / "rows.parquet")
    environment = {
        "LOCKGATE_HOME": str(root / "home"),
        "LOCKGATE_TRIGGER_SOURCES": json.dumps([str(root / "in")]),
        "LOCKGATE_TRIGGER_DESTINATIONS": json.dumps([str(root / "lake")]),
        "LOCKGATE_RECOVERY_MINUTES": "1440",  # a test presses Recover
        # A dead driver is known after half a minute, not two.
        "LOCKGATE_LEASE_RENEW_S": "2",
        "LOCKGATE_LEASE_SOFT_S": "15",
        "LOCKGATE_LEASE_HARD_S": "30",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "120",
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    }
    with (
        running_broker(load_settings(home=root / "home")),
        running_airflow(root, dags, environment, roles=ROLES, database=database) as services,
        services.process("triggerer", "triggerer", "--skip-serve-logs"),
    ):
        admin = replace(services, user=("ada", "ada"))
        for dag in ("dataset_commit", "job_files", "job_recovery"):
            admin.call("PATCH", f"dags/{dag}?update_mask=is_paused", {"is_paused": False})
        yield admin


@contextmanager
def logged_in(browser: Browser, airflow: Services, name: str) -> Iterator[Page]:
    """Open a window and log in by Airflow's form, as a user whose password is the name."""
    with window(browser, airflow) as context:
        page = context.new_page()
        page.goto("/")
        page.locator('input[name="username"]').fill(name)
        page.locator('input[name="password"]').fill(name)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(lambda url: "/login" not in url)
        yield page


@contextmanager
def window(browser: Browser, airflow: Services, **options: Any) -> Iterator[BrowserContext]:
    """Open a window without a login."""
    context = browser.new_context(base_url=airflow.url, viewport={"width": 1440, "height": 900}, **options)
    context.set_default_timeout(PATIENCE_MS)
    try:
        yield context
    finally:
        context.close()


def framed(page: Page) -> FrameLocator:
    """Return the frame in which Airflow shows a page of Lockgate."""
    return page.frame_locator('iframe[src*="lockgate/"]')


def job_page(destination: str, job_id: str) -> str:
    """Return the address of a job's page inside Airflow."""
    return f"/plugin/lockgate/lockgate/job?{urlencode({'destination': destination, 'job': job_id})}"
