"""Who triggered the DAG runs of an answer. The host knows it; no record of a job has a user of Airflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import Depends, Request

from lockgate.plugins.web.access import Host
from lockgate.plugins.web.models.jobs import Origin


def _host(request: Request) -> Host:
    host: Host = request.app.state.host
    return host


HostOfRequest = Annotated[Host, Depends(_host)]
"""Parameter of a route: the program that serves the application."""


def with_users(host: Host, origins: Sequence[Origin | None]) -> list[Origin | None]:
    """Return the origins with the users who triggered their runs, in order."""
    runs = {(origin.dag_id, origin.run_id) for origin in origins if origin is not None}
    users = host.run_users(runs) if runs else {}

    def named(origin: Origin | None) -> Origin | None:
        user = "" if origin is None else users.get((origin.dag_id, origin.run_id), "")
        return origin.model_copy(update={"triggered_by": user}) if origin is not None and user else origin

    return [named(origin) for origin in origins]
