"""Actions as DAG runs: permissions, audit log, retries and alerts are those of Airflow."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from airflow.api.common.trigger_dag import trigger_dag
from airflow.models import DagModel, Log
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType

from lockgate.operators.trigger_rights import allow_lists
from lockgate.plugins.web.access import ActionName, ActionRequest, ActionStarted, Stopped
from lockgate.storage_core.errors import ConflictError, InvalidInputError

DAGS: Final[Mapping[ActionName, str]] = {
    "recover": "job_recovery",
    "abort": "job_recovery",
    "revert": "turn_revert",
    "sweep-uploads": "upload_sweep",
    "sweep-blobs": "blob_sweep",
    "leave-safe-mode": "journal_checkpoint",
}
"""The DAG that carries an action out; a user who may trigger it may act."""


class DagRuns:
    """Starts a DAG run for each action.

    Args:
        run_href: Returns the address of a run; see `Host`.
    """

    def __init__(self, run_href: Callable[[str, str, str | None, int], str]) -> None:
        self._run_href = run_href

    def start(self, action: ActionName, request: ActionRequest, user: str) -> ActionStarted:
        """Start the DAG run of an action, recorded as its user's in the run and in Airflow's audit log.

        Raises:
            InvalidInputError: The action needs a job, or the DAG refuses a parameter.
            ConflictError: The DAG is missing or paused, or cannot be imported.
        """
        dag_id, conf = DAGS[action], _conf(action, request)
        with create_session() as session:
            if why := _why_stopped(DagModel.get_current(dag_id, session=session), dag_id):
                raise ConflictError(f"{why}; nothing was started")
            try:
                run = trigger_dag(
                    dag_id,
                    triggered_by=DagRunTriggeredByType.UI,
                    triggering_user_name=user,
                    conf=conf,
                    session=session,
                )
            except ValueError as error:  # also ParamValidationError
                raise InvalidInputError(
                    f"Airflow refuses to start DAG {dag_id}: {error}; nothing was started"
                ) from error
            assert run is not None  # noqa: S101 - it raises instead
            run_id: str = run.run_id
            extra = json.dumps({"lockgate": action, "conf": conf})
            session.add(
                Log(
                    event="trigger_dag_run",
                    owner=user,
                    owner_display_name=user,
                    dag_id=dag_id,
                    run_id=run_id,
                    extra=extra,
                )
            )
        return ActionStarted(
            action=action,
            dry_run=False,
            text=f"Started DAG {dag_id}, run {run_id}.",
            href=self._run_href(dag_id, run_id, None, -1),
        )


def stopped(action: ActionName, dag_href: Callable[[str], str]) -> Stopped | None:
    """Return why the DAG of an action cannot run, with the DAG's address; None if it can."""
    dag_id = DAGS[action]
    with create_session() as session:
        why = _why_stopped(DagModel.get_current(dag_id, session=session), dag_id)
    return Stopped(why, dag_href(dag_id)) if why else None


def warning(action: ActionName, request: ActionRequest) -> str:
    """Return why a worker with this server's settings would refuse the destination; empty if it would not.

    A recovery is of a job that the journal has, which no worker refuses.
    """
    if action not in {"abort", "revert", "sweep-uploads"} or not request.destination:
        return ""
    try:
        allow_lists().destination(request.destination)
    except InvalidInputError as error:
        return f"Its run will fail, if the workers have the settings of this server: {error}"
    return ""


def _conf(action: ActionName, request: ActionRequest) -> dict[str, Any]:
    """Return the parameters of the DAG run."""
    match action:
        case "recover" | "abort":
            job = {"destination": request.destination, "job_id": request.job_id}
            return {**job, "abort_reason": request.reason.strip() or "by hand"} if action == "abort" else job
        case "revert":
            return {"destination": request.destination, "turn": str(request.turn)}
        case "sweep-uploads":
            return {"destinations": request.destination} if request.destination else {}
        case "leave-safe-mode":
            if not request.reason:
                raise InvalidInputError("leave-safe-mode: name the reason to drop; nothing was started")
            return {"leave_safe_mode": request.reason}
        case _:
            return {}


def _why_stopped(dag: DagModel | None, dag_id: str) -> str:
    """Return why a DAG cannot run, and the remedy; empty if it can."""
    if dag is None or dag.is_stale:
        return f"Airflow has no DAG {dag_id}: `lockgate dags install DIR`, with Airflow's DAG folder"
    if dag.has_import_errors:
        return f"the file of DAG {dag_id} cannot be imported: see Airflow's import errors"
    if dag.is_paused:
        return f"DAG {dag_id} is paused: unpause it in Airflow"
    return ""
