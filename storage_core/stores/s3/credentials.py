"""Credentials: read them as they are now, refuse those that no request can hold, hand them to a process."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Self

from botocore.credentials import Credentials, ReadOnlyCredentials
from botocore.exceptions import (
    BotoCoreError,
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
)
from botocore.session import Session

from lockgate.storage_core.errors import AccessDeniedError, InvalidInputError, LockgateError
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores.s3.errors import NO_CONNECTION, NO_CREDENTIALS, scrubbed

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
    for part, name in _NAMES.items():
        value: object = getattr(now, part)
        if not value and part == "token":
            continue
        if not value:
            raise PartialCredentialsError(provider=credentials.method, cred_var=part)
        if not isinstance(value, str) or _UNSENDABLE.search(value):
            raise CredentialRetrievalError(
                provider=credentials.method,
                error_msg=f"the {name} is not text, or has a line break (often at the end of a file that it "
                "was read from) or another control character: write it without",
            )
    return now


@dataclass(frozen=True)
class FixedCredentials:
    """A key as it is now, for a process that ends with its work: can be pickled, and is not refreshed."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(repr=False)

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """Return the credentials that the settings contain or whose profile they name, as they are now.

        None if they do neither, so that each program looks for them itself.

        Raises:
            AccessDeniedError: They cannot be read.
            InvalidInputError: There are none where they are looked up.
        """
        profile = settings.s3_profile or os.environ.get("AWS_PROFILE")
        if settings.s3_credentials is None and profile is None:
            return None
        source: Callable[[], Any] = settings.s3_credentials or Session(profile=profile).get_credentials
        try:
            now: Any = read_credentials(source)
        except NoCredentialsError:
            raise InvalidInputError(
                "S3: the connection or the profile has no credentials, and none were found in the "
                "environment or the machine's role; nothing was sent; add a key or a role"
            ) from None
        except BotoCoreError as error:
            raise AccessDeniedError(
                f"S3: {scrubbed(error)}; nothing was sent; correct the credentials of the connection or the "
                "profile"
            ) from None
        return cls(now.access_key, now.secret_key, now.token or None)

    def __call__(self) -> Credentials:
        """Return them as botocore's."""
        return Credentials(self.access_key, self.secret_key, self.token)
