"""Observers: hot standbys that serve a journal's reads, and clients whose reads never go back in time.

    with configured_reads(settings) as client:
        jobs = client.read(queries.jobs)      # at an observer that has all that this process has seen

Source: the observers of HDFS: state ids, msync.
"""

from lockgate.storage_core.journal.observers.hot_standby import HotStandby
from lockgate.storage_core.journal.observers.observer import Observer
from lockgate.storage_core.journal.observers.process_reader import configured_reads, open_observer
from lockgate.storage_core.journal.observers.reading_client import Client, ObserverStatus
from lockgate.storage_core.journal.session_token import SessionToken

__all__ = [
    "Client",
    "HotStandby",
    "Observer",
    "ObserverStatus",
    "SessionToken",
    "configured_reads",
    "open_observer",
]
