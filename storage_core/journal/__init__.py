"""The journal: one order for stamps, leases and the registry of jobs.

Source: the transaction log and GenerationStamp of HDFS, the state id of its observers.
"""

from lockgate.storage_core.journal.entries.lease_entries import LeaseState
from lockgate.storage_core.journal.journal import MAIN, Journal, open_journal
from lockgate.storage_core.journal.leases.lease import Leases, LeaseView
from lockgate.storage_core.journal.read.snapshot_read import Reading, Status
from lockgate.storage_core.journal.write.mutation import Mutation, Refused, WriteOutcome, Written
from lockgate.storage_core.stamp import Stamp

__all__ = [
    "MAIN",
    "Journal",
    "LeaseState",
    "LeaseView",
    "Leases",
    "Mutation",
    "Reading",
    "Refused",
    "Stamp",
    "Status",
    "WriteOutcome",
    "Written",
    "open_journal",
]
