"""Observers: copies of a journal that take the reads, and clients whose reads never go back in time.

    with configured_reads(settings) as reads:
        jobs = reads.read(registry.jobs)      # at an observer that holds all that this process has seen

Source: the observers of HDFS: state ids, msync, fast-path tailing.
"""

from lockgate.storage_core.journal.observers.client import Client, ObserverStatus
from lockgate.storage_core.journal.observers.hot_standby import HotStandby
from lockgate.storage_core.journal.observers.observer import Observer
from lockgate.storage_core.journal.observers.process_reader import configured_reads, open_observer
from lockgate.storage_core.journal.observers.sqlite_replica import TailingObserver
from lockgate.storage_core.journal.observers.tailer import Tailer, open_tailer
from lockgate.storage_core.journal.propagation import headers, heed
from lockgate.storage_core.journal.session_token import CARRIED_AS, Token, carried, carry

__all__ = [
    "CARRIED_AS",
    "Client",
    "HotStandby",
    "Observer",
    "ObserverStatus",
    "Tailer",
    "TailingObserver",
    "Token",
    "carried",
    "carry",
    "configured_reads",
    "headers",
    "heed",
    "open_observer",
    "open_tailer",
]
