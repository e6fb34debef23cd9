"""The journal: one order for stamps, leases and the registry of jobs.

Source: the transaction log and GenerationStamp of HDFS, the state id of its observers.
"""

from lockgate.storage_core.journal.entries.leases import LeaseState
from lockgate.storage_core.journal.journal import MAIN, Journal, open_journal
from lockgate.storage_core.journal.leases.leases import Leases, LeaseView
from lockgate.storage_core.journal.read.snapshot_read import Reading, Status
from lockgate.storage_core.journal.write.mutation import Mutation, Outcome, Refused, Written
from lockgate.storage_core.stamp import Stamp

__all__ = [
    "MAIN",
    "Journal",
    "LeaseState",
    "LeaseView",
    "Leases",
    "Mutation",
    "Outcome",
    "Reading",
    "Refused",
    "Stamp",
    "Status",
    "Written",
    "open_journal",
]
