"""Observers: hot standbys that take a journal's reads, and clients whose reads never go back in time.

    with configured_reads(settings) as reads:
        jobs = reads.read(registry.jobs)      # at an observer that holds all that this process has seen

Source: the observers of HDFS: state ids, msync.
"""

from storage_core.journal.observers.client import Client, ObserverStatus
from storage_core.journal.observers.configured import configured_reads, open_observer
from storage_core.journal.observers.hot_standby import HotStandby
from storage_core.journal.observers.observer import Observer
from storage_core.journal.observers.token import CARRIED_AS, Token, carried, carry
from storage_core.journal.observers.travel import headers, heed

__all__ = [
    "CARRIED_AS",
    "Client",
    "HotStandby",
    "Observer",
    "ObserverStatus",
    "Token",
    "carried",
    "carry",
    "configured_reads",
    "headers",
    "heed",
    "open_observer",
]
