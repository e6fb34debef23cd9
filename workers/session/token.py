"""What this process has seen of its journals, as it travels in messages, answers and XCom values.

A process without a journal carries nothing, and loads nothing of it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

HEADER: Final = "lockgate-at-least"
"""Of a task's message; the same key is in its answer."""


def tokens() -> dict[str, str]:
    """Return the header of what this process has seen; empty if it has opened no journal."""
    if "lockgate.storage_core.journal.process_journal" not in sys.modules:
        return {}
    from lockgate.storage_core.journal.observers import headers  # noqa: PLC0415 - half a second

    return headers()


def take_up(told: Mapping[str, Any]) -> None:
    """Read from now on at least what a sender has seen, if it has told; what is no token is ignored."""
    if told.get(HEADER):
        from lockgate.storage_core.journal.observers import heed  # noqa: PLC0415 - half a second

        heed(told)
