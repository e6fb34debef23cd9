"""The session token in task messages, results and XCom values: the journal states that a process has seen.

A process that has not opened a journal adds no token and does not import the journal.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

HEADER: Final = "lockgate-at-least"
"""Header of a task's message, and key in its result."""


def tokens() -> dict[str, str]:
    """Return the header with this process's token; empty if it has opened no journal."""
    if "lockgate.storage_core.journal.process_journal" not in sys.modules:
        return {}
    from lockgate.storage_core.journal.process_journal import inject

    return inject()


def extract(carrier: Mapping[str, Any]) -> None:
    """Make later reads of this process return states at least as new as the sender has seen.

    Args:
        carrier: Headers of a message, or a result; a missing or malformed token is ignored.
    """
    if carrier.get(HEADER):
        from lockgate.storage_core.journal import process_journal

        process_journal.extract(carrier)
