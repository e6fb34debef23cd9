"""Buttons on a task that lead to its page, and the page's address for the task's log.

Airflow stores a button's address when a task ends, so a killed task would have none: operators push it before
they begin. It is relative, because Airflow's page has a `<base>`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from airflow.sdk import BaseOperatorLink

from lockgate.operators.dag_run.parameters import from_template

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class PageLink(BaseOperatorLink):
    """A button that leads to the page of the task's job, or to another page.

    Args:
        name: Text of the button.
        page: Page for a task without a job.
        section: Section of the job's page.
    """

    def __init__(self, name: str = "Lockgate job", page: str = "jobs", section: str = "") -> None:
        self._name = name
        self._page = page
        self._section = section

    @property
    def name(self) -> str:
        """Text of the button."""
        return self._name

    @property
    def xcom_key(self) -> str:
        """Key under which the address is pushed."""
        return f"_link_{self._name.lower().replace(' ', '_')}"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey | None = None) -> str:  # noqa: ARG002 - Airflow's
        """Return the address, from the operator's rendered parameters."""
        query = job_query(operator)
        return framed(f"job?{query}{self._section}" if query else self._page)


def job_query(operator: Any) -> str:
    """Return the query of the job's page; empty while the operator has no job."""
    handle = from_template(getattr(operator, "job", None))
    if not isinstance(handle, dict):
        handle = {name: getattr(operator, name, None) for name in ("destination", "job_id")}
    destination, job_id = handle.get("destination"), handle.get("job_id")
    known = isinstance(destination, str) and isinstance(job_id, str)
    return urlencode({"destination": destination, "job": job_id}) if known else ""


def framed(page: str) -> str:
    """Return the address of a page inside Airflow's, with the navigation around it."""
    return f"plugin/lockgate{urlsplit(_base_url()).path.rstrip('/')}/lockgate/{page}"


def job_address(destination: str, job_id: str) -> str:
    """Return the address of a job's page for a log: with Airflow's host if `[api] base_url` has it."""
    query = urlencode({"destination": destination, "job": job_id})
    return f"{_base_url().rstrip('/')}/{framed(f'job?{query}')}"


def _base_url() -> str:
    from airflow.sdk.configuration import conf

    return conf.get("api", "base_url", fallback="") or ""
