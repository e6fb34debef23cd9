"""How requests to S3 are sent: which of them once, which again, and what their errors become.

Creations, conditional changes and completions are sent once: botocore's own repetition could meet its first
try and report it as someone else's. Everything else may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from botocore.exceptions import IncompleteReadError, ResponseStreamingError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lockgate.storage_core.errors import AccessDeniedError, OutcomeUnknownError, StoreUnavailableError
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores.protocol import check_key
from lockgate.storage_core.stores.s3.clients import Clients, clients_for
from lockgate.storage_core.stores.s3.errors import RequestInfo, translated

_CUT_SHORT: Final = (IncompleteReadError, ResponseStreamingError)


class RequestPolicy:
    """The requests of one store.

    Args:
        url: Of the store, for messages.
        bucket: Its name.
        prefix: Below which the store lies, without a slash at its end; may be empty.
        settings: Name the endpoint and the credentials, and say how often a request is tried.

    Attributes:
        prefix: What stands before every key in the bucket: empty, or ending in a slash.
    """

    def __init__(self, url: str, bucket: str, prefix: str, settings: Settings) -> None:
        self.prefix = f"{prefix}/" if prefix else ""
        self._url = url
        self._bucket = bucket
        self._settings = settings

    def key(self, key: str) -> str:
        """Return a key of the store as the bucket knows it.

        Raises:
            InvalidInputError: No store could keep such a key.
        """
        return self.prefix + check_key(key)

    @contextmanager
    def reading(self, operation: str, key: str) -> Iterator[Clients]:
        """Make a request that changes nothing; its errors become ours."""
        with translated(self._call(operation, key, changes=False)):
            yield clients_for(self._settings)

    @contextmanager
    def once(self, operation: str, key: str, *, if_absent: bool = False) -> Iterator[Clients]:
        """Make a request whose second try could meet its first; use the clients' `single`."""
        with translated(self._call(operation, key, changes=True, if_absent=if_absent)):
            yield clients_for(self._settings)

    @contextmanager
    def repeating(self, operation: str, key: str) -> Iterator[Clients]:
        """Make a request that changes something, and may be sent again.

        Raises:
            OutcomeUnknownError: The last try was refused, and one before it got no answer.
        """
        clients = clients_for(self._settings)
        clients.lost_tries.seen = False
        try:
            with translated(self._call(operation, key, changes=True)):
                yield clients
        except (StoreUnavailableError, AccessDeniedError) as fault:
            if not clients.lost_tries.seen:
                raise
            raise OutcomeUnknownError(
                f"{fault}; but an earlier try got no answer: it may have been done; nothing was deleted"
            ) from None

    def tries(self) -> Retrying:
        """Return what asks again for a body that was cut short."""
        return Retrying(
            retry=retry_if_exception_type(_CUT_SHORT),
            stop=stop_after_attempt(self._settings.s3_max_attempts),
            wait=wait_random_exponential(multiplier=0.1, max=5),
            reraise=True,
        )

    def _call(self, operation: str, key: str, *, changes: bool, if_absent: bool = False) -> RequestInfo:
        return RequestInfo(
            operation, f"{self._url}/{key}", self._bucket, changes=changes, if_absent=if_absent
        )
