"""The journal's own family: leases and claims, and the tables that order all entries."""

from __future__ import annotations

from typing import Final

from storage_core.journal.entries.family import Family
from storage_core.journal.ops.claims import ClaimName, ReleaseName
from storage_core.journal.ops.leases import DropLease, FreeLease, ParkLease, RearmLeases, TakeLease
from storage_core.journal.rows import Claim, Lease, Request

JOURNAL: Final = Family(
    name="journal",
    version=1,
    rows=(Lease, Claim),
    ops=(TakeLease, ParkLease, FreeLease, DropLease, RearmLeases, ClaimName, ReleaseName),
    migrations="storage_core.journal.migrations.versions",
    other_tables=("head", "epoch", "entry", Request.TABLE),
)
