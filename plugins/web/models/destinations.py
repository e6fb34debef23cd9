"""Destinations and their logs."""

from __future__ import annotations

from typing import Literal

from lockgate.plugins.web.models.jobs import Origin
from lockgate.plugins.web.models.model import Model


class DestinationRow(Model):
    """A destination of jobs.

    Attributes:
        first_s: When its first job was registered; None if the journal does not know it.
        last_s: When a job of it was last changed.
    """

    destination: str
    first_s: float | None
    last_s: float | None


class Turn(Model):
    """One entry of a destination's log.

    Attributes:
        verdict: `published`, `reverted`, `passed`; None while the turn has no outcome.
        origin: The Airflow task that set the job up; None without Airflow, or if it is not recorded.
        created_by: User, host and process that set the job up without Airflow; empty if it is not recorded.
        removed_rows: Rows of the removed files; None if they are not known for each of them.
    """

    turn: int
    job_id: str
    origin: Origin | None = None
    created_by: str = ""
    verdict: Literal["published", "reverted", "passed"] | None
    decided_s: float | None
    added_files: int
    added_rows: int | None
    added_bytes: int
    removed_files: int
    removed_rows: int | None
    removed_bytes: int
    reason: str = ""


class ColumnType(Model):
    """A column of a destination's rows.

    Attributes:
        type: Its type, as the writer spells it.
    """

    name: str
    type: str


class DestinationDetail(Model):
    """A destination: what is live, and what blocks it.

    Attributes:
        live_files: None if the log could not be read.
        average_file_bytes: None without live files.
        columns: None if no job has recorded them.
        hint: A hint at compaction, in one sentence; empty if there is no need.
        blocked: Why the newest turn blocks the destination, and the remedy; empty if it does not.
        unknown: What could not be read, one sentence each.
    """

    destination: str
    turn: int | None
    live_files: int | None
    live_rows: int | None
    live_bytes: int | None
    average_file_bytes: float | None
    columns: tuple[ColumnType, ...] | None
    hint: str
    blocked: str
    unknown: tuple[str, ...] = ()
