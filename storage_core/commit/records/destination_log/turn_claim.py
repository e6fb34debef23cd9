"""Turn claim: it decides which job's turn it is to commit to a destination.

Source: commit protocol, "What lies where".
"""

from __future__ import annotations

from lockgate.storage_core.commit.records.codec import Record
from lockgate.storage_core.commit.records.job import JobId
from lockgate.storage_core.ids import Token
from lockgate.storage_core.stamp import Stamp


class TurnClaim(Record, frozen=True, tag="turn"):
    """`log/<turn>.turn`: the job whose turn it is to commit to the destination.

    Attributes:
        stamp: Stamp of the claimant's lease; others wait for the turn only while that lease is live.
    """

    job_id: JobId
    token: Token
    stamp: Stamp
