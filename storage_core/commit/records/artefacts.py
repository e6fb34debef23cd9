"""What a job's tasks need of the blob stores: uploaded before, named in `job.json`, the job's until its end.

The commit protocol knows no blobs, only their names: the journal joins both.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from lockgate.storage_core.errors import InvalidInputError

BlobJobId = Annotated[str, msgspec.Meta(pattern=r"\A(?!no_job\Z)[A-Za-z0-9][A-Za-z0-9._=+-]{0,119}\Z")]
"""Of a job, which ends: blobs of `no_job` are others', too, and would go with it."""

BlobKey = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}-[0-9a-f]{32}\Z")]


class JobArtefacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Blobs of one job; the lists are of equal length.

    Attributes:
        job_id: Of the job in the blob stores.
        blob_keys: Of the blobs.
        names: Of the files that they were.
        uses: What each is for; empty: all are libraries.
    """

    job_id: BlobJobId
    blob_keys: tuple[BlobKey, ...]
    names: tuple[str, ...]
    uses: tuple[Literal["library", "message", "log", "other"], ...] = ()

    def __post_init__(self) -> None:
        """Refuse lists that do not belong together."""
        if len(self.names) != len(self.blob_keys) or len(self.uses) not in {0, len(self.names)}:
            raise ValueError("blob_keys, names and uses are not of equal length")

    def handle(self) -> dict[str, Any]:
        """Return them as they are told: small, JSON."""
        told: dict[str, Any] = msgspec.to_builtins(self)
        return told


def artefacts_of(handle: object) -> JobArtefacts:
    """Return the artefacts that a handle names.

    Raises:
        InvalidInputError: It is none.
    """
    try:
        return msgspec.convert(handle, JobArtefacts)
    except msgspec.ValidationError as error:
        raise InvalidInputError(
            f"artefacts={str(handle)[:120]!r} are none ({error}); nothing was set up; pass what an upload "
            "returned: the output of BlobUploadOperator"
        ) from None
