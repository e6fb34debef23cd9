"""The journal: one order for stamps, leases and the registry of jobs.

Source: the transaction log and GenerationStamp of HDFS, the state id of its observers.
"""

from storage_core.journal.journal import MAIN, Journal, open_journal
from storage_core.journal.leases import Leases, LeaseView
from storage_core.journal.mutation import Mutation, Refused, WriteOutcome, Written
from storage_core.journal.ops.leases import LeaseState
from storage_core.journal.reading import Reading, Status
from storage_core.stamp import Stamp

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
