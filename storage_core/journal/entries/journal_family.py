"""The family `journal`: leases, claims and the tables that order all entries."""

from __future__ import annotations

from typing import Final

from lockgate.storage_core.journal.entries.claims import ClaimName, ReleaseName
from lockgate.storage_core.journal.entries.family import Family
from lockgate.storage_core.journal.entries.leases import (
    DropLease,
    FreeLease,
    ParkLease,
    RearmLeases,
    TakeLease,
)
from lockgate.storage_core.journal.entries.rows import Claim, Lease, Request

JOURNAL: Final = Family(
    name="journal",
    version=2,
    rows=(Lease, Claim),
    ops=(TakeLease, ParkLease, FreeLease, DropLease, RearmLeases, ClaimName, ReleaseName),
    migrations="lockgate.storage_core.journal.database.migrations.versions",
    other_tables=("head", "epoch", "entry", "safe_reason", Request.TABLE),
    soft_tables=("holder",),
)
