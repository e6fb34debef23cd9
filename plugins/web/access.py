"""Who may look, who may act, and what carries an action out: Airflow, or `lockgate ui`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeAlias

from fastapi import Depends, Request
from pydantic import Field

from lockgate.plugins.web.answers import Model
from lockgate.storage_core.settings import Settings

ActionName = Literal["recover", "abort", "revert", "sweep-uploads", "sweep-blobs", "leave-safe-mode"]

Dependency = Callable[..., Any]
"""A FastAPI dependency that raises an `HTTPException` with 401 or 403."""

Run: TypeAlias = tuple[str, str]
"""A DAG run: DAG and run id."""


class ActionRequest(Model):
    """What to do.

    Attributes:
        dry_run: Report what would be done, and change nothing; the default.
        destination: For `recover`, `abort`, `revert` and `sweep-uploads`.
        job_id: For `recover` and `abort`.
        turn: For `revert`: the turn whose files are to be live again.
        reason: For `abort`: recorded with the decision. For `leave-safe-mode`: the reason to leave.
    """

    dry_run: bool = True
    destination: Annotated[str, Field(max_length=2_048)] | None = None
    job_id: Annotated[str, Field(max_length=512)] | None = None
    turn: Annotated[int, Field(ge=1, le=10**8)] | None = None
    reason: Annotated[str, Field(max_length=1_000)] = ""


class ActionStarted(Model):
    """What was started, or would be done.

    Attributes:
        text: One sentence.
        href: Address where its progress is seen; None for a dry run, or if it is done already.
        lines: Of a dry run: one line for each thing that it would do.
    """

    action: ActionName
    dry_run: bool
    text: str
    href: str | None = None
    lines: tuple[str, ...] = ()


class Stopped(NamedTuple):
    """Why an action cannot run now.

    Attributes:
        why: What stops it, and what a person does about it.
        href: Address of the page where it is done; None if there is none.
    """

    why: str
    href: str | None = None


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
        settings: Settings of now, and another object once they have changed; None: those of the environment.
        settings_from: Where they are from, for a person who sees an empty journal and expects a full one.
        stopped: Why an action could not run if it were started, such as a paused DAG; None if it could.
        warning: Why the run of an action might be refused although it starts; empty if nothing is known.
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
    settings: Callable[[], Settings] | None = None
    settings_from: str = "LOCKGATE_JOURNAL_URL, or LOCKGATE_HOME, of this server"
    stopped: Callable[[ActionName], Stopped | None] = lambda _: None
    warning: Callable[[ActionName, ActionRequest], str] = lambda *_: ""
    own_origin: Callable[[], str] = str


def _of_request(request: Request) -> Host:
    host: Host = request.app.state.host
    return host


HostOfRequest = Annotated[Host, Depends(_of_request)]
"""Parameter of a route: the program that serves the application."""
