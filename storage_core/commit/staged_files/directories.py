"""Where a job's attempts stage files outside its destination."""

from __future__ import annotations

import hashlib
from pathlib import Path

from lockgate.storage_core.commit.records.job import JobRecord
from lockgate.storage_core.settings import Settings


def staging_dir(job: JobRecord, settings: Settings) -> Path:
    """Return a job's own staging directory; it goes, whole, when the job ends.

    `spec.staging` must be a disk that workers see; without it, `LOCKGATE_HOME/staging` serves one machine.
    """
    base = Path(job.spec.staging) if job.spec.staging is not None else settings.home_dir / "staging"
    # Jobs of one name at two destinations have the same short id; their tokens are their own.
    return base / f"lockgate-{job.short_id}-{hashlib.sha256(job.token.encode()).hexdigest()[:10]}"
