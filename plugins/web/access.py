"""Who may look, who may act, and what carries an action out: Airflow, or `lockgate ui`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from starlette.requests import Request

from lockgate.plugins.web.models.actions import ActionName, ActionRequest, ActionStarted

Dependency = Callable[..., Any]
"""A FastAPI dependency that raises an `HTTPException` with 401 or 403."""

Run: TypeAlias = tuple[str, str]
"""A DAG run: DAG and run id."""


class Actions(Protocol):
    """Carries actions out. A dry run never comes here: it is a read, and the application does it."""

    def start(self, action: ActionName, request: ActionRequest, user: str) -> ActionStarted:
        """Start an action; `user` is recorded with it."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """The program that serves the application.

    Attributes:
        may_read: Dependency of every route.
        may_act: Dependency of each action's route, beside `may_read`.
        offers: The actions whose buttons this request's user is shown.
        user: Name of the request's user, for the record.
        actions: Carries actions out; None: the pages are read-only.
        run_href: Address of an Airflow DAG run or task instance: `(dag_id, run_id, task_id, map_index)`; None
            without Airflow.
        run_users: Users who triggered DAG runs, given by DAG and run id; others are left out.
        theme: `airflow`: light and dark follow Airflow's switch; `browser`: they follow the browser.
        destinations: Destinations that may be read beside those in the journal.
        own_origin: Origin of the host's configured address, `https://airflow.example`; empty if there is
            none. Behind a proxy, a browser sends this one, and the `Host` header may be an inner name.
    """

    may_read: Dependency
    may_act: Mapping[ActionName, Dependency]
    offers: Callable[[Request], frozenset[ActionName]]
    user: Callable[[Request], str]
    actions: Actions | None = None
    run_href: Callable[[str, str, str | None, int], str] | None = None
    run_users: Callable[[Collection[Run]], Mapping[Run, str]] = lambda _: {}
    theme: str = "browser"
    destinations: tuple[str, ...] = ()
    own_origin: Callable[[], str] = str
