"""Credentials that another process has read, for a process that ends with its work."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError, NoCredentialsError
from botocore.session import Session

from lockgate.storage_core.errors import AccessDeniedError, InvalidInputError
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores.s3.credentials import read_credentials
from lockgate.storage_core.stores.s3.errors import scrubbed


@dataclass(frozen=True)
class FixedCredentials:
    """A key as it is now; can be pickled, and is not refreshed. `Settings.with_s3_credentials` takes it."""

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
