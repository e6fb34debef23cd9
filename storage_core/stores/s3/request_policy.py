"""Decide which requests to S3 are sent once and which may be retried, and translate their errors.

Creations, conditional changes and completions are sent once: botocore's retry could find the effect of its
first attempt and report it as another caller's. All other requests may be retried.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from botocore.exceptions import IncompleteReadError, ResponseStreamingError
from urllib3.exceptions import HTTPError

from lockgate.storage_core.errors import NotAppliedError, OutcomeUnknownError, UploadGoneError
from lockgate.storage_core.retry import Retry
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores.protocol import check_key, check_listed_key
from lockgate.storage_core.stores.s3.answers import CutAnswerError
from lockgate.storage_core.stores.s3.clients import Clients, clients_for
from lockgate.storage_core.stores.s3.errors import RequestInfo, translated

_CUT: Final = (CutAnswerError, IncompleteReadError, ResponseStreamingError, HTTPError)
"""What boto3 raises where the body of an answer ends too early."""

T = TypeVar("T")


class RequestPolicy:
    """Sends the requests of one store.

    Args:
        url: URL of the store, for messages.
        bucket: Name of the bucket.
        prefix: Prefix of the store in the bucket, without a trailing slash; may be empty.
        settings: Settings with endpoint, credentials and number of attempts.

    Attributes:
        bucket: Name of the bucket.
        prefix: Prefix of every key in the bucket: empty, or ending in a slash.
    """

    def __init__(self, url: str, bucket: str, prefix: str, settings: Settings) -> None:
        self.prefix = f"{prefix}/" if prefix else ""
        self._url = url
        self.bucket = bucket
        self._settings = settings
        self._process_id = 0
        self._made: Clients | None = None
        self._reads = Retry(
            lambda error: isinstance(error, _CUT),
            tries=settings.s3_max_attempts,
            pause_s=0.1,
            longest_pause_s=5,
        )

    def key(self, key: str) -> str:
        """Return the key in the bucket for a key of the store.

        Raises:
            InvalidInputError: The key is invalid.
        """
        return self.prefix + check_key(key)

    def listed_key(self, key: str) -> str:
        """Return the key in the bucket for a key from a listing, which may be one that no job could write.

        Raises:
            InvalidInputError: A path or URL could take the key for another one.
        """
        return self.prefix + check_listed_key(key)

    def read(self, operation: str, key: str, call: Callable[[Clients], T]) -> T:
        """Make a call that changes nothing, again if its answer is cut.

        Args:
            operation: S3's name of the operation.
            key: Key or prefix of the store, for messages.
            call: Sends the request and reads the body of the answer.
        """
        with translated(self._info(operation, key, changes=False)):
            return self._reads.call(call, self._clients())

    @contextmanager
    def once(self, operation: str, key: str, *, if_absent: bool = False) -> Iterator[Clients]:
        """Yield the clients for a request that must not be retried; use `Clients.single`."""
        with translated(self._info(operation, key, changes=True, if_absent=if_absent)):
            yield self._clients()

    @contextmanager
    def repeating(self, operation: str, key: str) -> Iterator[Clients]:
        """Yield the clients for a request that changes something and may be retried.

        Raises:
            OutcomeUnknownError: The last attempt was refused, and an earlier one got no answer.
        """
        info = self._info(operation, key, changes=True)
        with translated(info):
            clients = self._clients()
        clients.lost_tries.seen = False
        try:
            with translated(info):
                yield clients
        except UploadGoneError:
            raise  # whatever an earlier try did: it is certain that the upload is not open
        except NotAppliedError as error:
            if not clients.lost_tries.seen:
                raise
            raise OutcomeUnknownError(
                f"{info}: an earlier try got no answer: it may have been applied; nothing was deleted; "
                f"let recovery read {info.url} back; answer to the last try: {error}"
            ) from None

    def _clients(self) -> Clients:
        """Return this process's clients; finding them costs as much as a short call."""
        if self._made is None or self._process_id != os.getpid():
            self._process_id, self._made = os.getpid(), clients_for(self._settings)
        return self._made

    def _info(self, operation: str, key: str, *, changes: bool, if_absent: bool = False) -> RequestInfo:
        return RequestInfo(operation, f"{self._url}/{key}", self.bucket, changes=changes, if_absent=if_absent)
