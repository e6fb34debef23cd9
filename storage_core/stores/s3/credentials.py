"""Credentials: read them as they are now, and refuse those that no request can hold."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from botocore.credentials import Credentials, ReadOnlyCredentials
from botocore.exceptions import CredentialRetrievalError, NoCredentialsError, PartialCredentialsError

from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.stores.s3.errors import NO_CONNECTION, NO_CREDENTIALS

_NAMES: Final = {"access_key": "access key", "secret_key": "secret key", "token": "session token"}

_UNSENDABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters, and those that UTF-8 cannot encode: an error of a library would show the header."""


def read_credentials(source: Callable[[], Credentials | None]) -> ReadOnlyCredentials:
    """Return the credentials as they are now, which boto3 refreshes if they expire.

    Args:
        source: Returns boto3's credentials; None if there are none. It may run a program or send a request.

    Raises:
        CredentialRetrievalError: They cannot be read or refreshed, or no request can hold them.
        NoCredentialsError: There are none.
        PartialCredentialsError: A key is empty.
    """
    try:
        credentials = source()
        if credentials is None:
            raise NoCredentialsError
        now = credentials.get_frozen_credentials()
    except (LockgateError, *NO_CONNECTION, *NO_CREDENTIALS):
        raise
    except Exception as error:  # noqa: BLE001 - botocore does not check what a program or a file says
        raise CredentialRetrievalError(
            provider="boto3", error_msg=f"{type(error).__name__} {error}".strip()
        ) from None
    for field, name in _NAMES.items():
        value: object = getattr(now, field)
        if not value and field == "token":
            continue
        if not value:
            raise PartialCredentialsError(provider=credentials.method, cred_var=field)
        if not isinstance(value, str) or _UNSENDABLE.search(value):
            raise CredentialRetrievalError(
                provider=credentials.method,
                error_msg=f"the {name} is not text, or has a line break (often at the end of a file that it "
                "was read from) or another control character: write it without",
            )
    return now
