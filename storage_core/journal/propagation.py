"""A process's token on its way to another process: in the headers of a request, a message or an answer.

    httpx.get(url, headers=headers())     # the caller
    heed(request.headers)                 # the called, before it reads

Neither opens a journal. What was told of one that is not open yet counts from when it is opened.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.journal.process_journal import seen_here, tell_here
from lockgate.storage_core.journal.session_token import CARRIED_AS, Token, carried

LOG: Final = logging.getLogger("lockgate.journal")


def headers() -> dict[str, str]:
    """Return the header that tells what this process has seen of its journals; empty if it saw nothing."""
    token = str(Token({name: stamps for name, stamps in seen_here().items() if stamps}))
    return {CARRIED_AS: token} if token else {}


def heed(told: Mapping[str, Any]) -> None:
    """Read from now on at least what a sender has seen; what is no token is ignored, with a warning.

    The stamps of a sender count for the whole process: heed nobody whom you would not let write.

    Args:
        told: Headers, or an XCom value; the case of the name does not matter.
    """
    try:
        token = carried(told)
    except InvalidInputError as error:
        LOG.warning(
            "%s: %s; it is ignored: a read may be older than what its sender has seen", CARRIED_AS, error
        )
        return
    tell_here(token.stamps)
