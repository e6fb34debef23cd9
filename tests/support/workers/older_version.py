"""Lockgate's workers as of an earlier release: `celery -A tests.support.workers.older_version worker`.

It knows the journal up to the version before this tree's. Its tasks take what the present tree's take: see
`newer_version`, whose clients send one argument more.
"""

from __future__ import annotations

from msgspec import structs

from lockgate.storage_core.journal.database import create_tables
from lockgate.storage_core.journal.entries.family import JOURNAL, Families, known_families
from lockgate.workers import app

__all__ = ["app"]

EARLIER = Families(
    structs.replace(family, version=JOURNAL.version - 1) if family.name == JOURNAL.name else family
    for family in known_families()
)

create_tables.known_families = lambda: EARLIER  # type: ignore[assignment]
