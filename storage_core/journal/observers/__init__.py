"""Observers: copies of a journal that take the reads, and clients whose reads never go back in time.

    with configured_reads(settings) as reads:
        jobs = reads.read(registry.jobs)      # at an observer that holds all that this process has seen

Source: the observers of HDFS: state ids, msync, fast-path tailing.
"""

from storage_core.journal.observers.client import Client, ObserverStatus
from storage_core.journal.observers.configured import configured_reads, open_observer
from storage_core.journal.observers.hot_standby import HotStandby
from storage_core.journal.observers.observer import Observer
from storage_core.journal.observers.tailer import Tailer, open_tailer
from storage_core.journal.observers.tailing_observer import TailingObserver
from storage_core.journal.observers.token import CARRIED_AS, Token, carried, carry
from storage_core.journal.observers.travel import headers, heed

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
