"""Send this process's session token to other processes, in the headers of a request, message or response.

    httpx.get(url, headers=inject())      # client side
    extract(request.headers)              # server side, before the first read

Neither opens a journal. Stamps of a journal that is not open yet take effect when it is opened.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.journal.process_journal import process_stamps, receive_stamps
from lockgate.storage_core.journal.session_token import AT_LEAST_HEADER, SessionToken

LOG: Final = logging.getLogger("lockgate.journal")


def inject() -> dict[str, str]:
    """Return the header with the stamps that this process has seen; empty if it has seen none."""
    token = str(SessionToken({name: stamps for name, stamps in process_stamps().items() if stamps}))
    return {AT_LEAST_HEADER: token} if token else {}


def extract(headers: Mapping[str, Any]) -> None:
    """Make later reads at least as new as the sender has seen; ignore a malformed token with a warning.

    The stamps take effect in the whole process: accept them only from senders that may write to the journal.

    Args:
        headers: Headers of a message, or an XCom value; the case of the name does not matter.
    """
    try:
        token = SessionToken.from_headers(headers)
    except InvalidInputError as error:
        LOG.warning(
            "%s: %s; it is ignored: a read may be older than what its sender has seen", AT_LEAST_HEADER, error
        )
        return
    receive_stamps(token.stamps)
