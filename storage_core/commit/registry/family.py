"""The family `jobs`: destinations, jobs, their daily totals and task commits."""

from __future__ import annotations

from typing import Final

from lockgate.storage_core.commit.registry.day_totals import with_totals
from lockgate.storage_core.commit.registry.entries import (
    ForgetJob,
    RecordJob,
    RecordTask,
    TakeArtefacts,
    job_touched,
    refuse_ended,
)
from lockgate.storage_core.commit.registry.rows import Destination, Job, JobDay, TaskAttempt
from lockgate.storage_core.journal.entries.events import ResourceUsed
from lockgate.storage_core.journal.entries.family import Family, Reaction

JOBS: Final = Family(
    name="jobs",
    version=3,
    rows=(Destination, Job, JobDay, TaskAttempt),
    ops=(RecordJob, RecordTask, ForgetJob, TakeArtefacts),
    migrations="lockgate.storage_core.commit.registry.migrations",
    reactions=(Reaction(event=ResourceUsed, fold=refuse_ended, touches=job_touched),),
    upgrade=with_totals,
)
