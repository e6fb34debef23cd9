"""Credentials that another process has read, for a process that ends with its work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from botocore.credentials import Credentials

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import Settings


@dataclass(frozen=True)
class FixedCredentials:
    """A key as it is now; can be pickled, and is not refreshed. `Settings.with_s3_credentials` takes it."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(repr=False)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the credentials that the settings contain, as they are now.

        Raises:
            InvalidInputError: There are none where they are looked up.
        """
        found = settings.s3_credentials() if settings.s3_credentials else None
        if found is None:
            raise InvalidInputError(
                "S3: the connection has no credentials, and none were found in the environment, the AWS "
                "configuration or the machine's role; nothing was sent; add a key or a role to the connection"
            )
        frozen = found.get_frozen_credentials()
        return cls(frozen.access_key, frozen.secret_key, frozen.token or None)

    def __call__(self) -> Credentials:
        """Return them as botocore's."""
        return Credentials(self.access_key, self.secret_key, self.token)
