"""Blobs that a job's tasks need: uploaded before set-up, named in `job.json`, kept until the job's end.

The commit protocol knows only the names of blobs; the journal connects both.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from lockgate.storage_core.decoding import convert
from lockgate.storage_core.errors import InvalidInputError

BlobJobId = Annotated[str, msgspec.Meta(pattern=r"\A(?!no_job\Z)[A-Za-z0-9][A-Za-z0-9._=+-]{0,119}\Z")]
"""Id of a job in the blob stores; not `no_job`, whose blobs are shared and must survive the job's end."""

BlobKey = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}-[0-9a-f]{32}\Z")]


class JobArtefacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Blobs of one job; the lists are of equal length.

    Attributes:
        job_id: Id of the job in the blob stores.
        blob_keys: Keys of the blobs.
        names: Names of the files that were uploaded.
        uses: Purpose of each blob; empty if all are libraries.
    """

    job_id: BlobJobId
    blob_keys: tuple[BlobKey, ...]
    names: tuple[str, ...]
    uses: tuple[Literal["library", "message", "log", "other"], ...] = ()

    def __post_init__(self) -> None:
        """Refuse lists of different lengths."""
        if len(self.names) != len(self.blob_keys) or len(self.uses) not in {0, len(self.names)}:
            raise ValueError("blob_keys, names and uses are not of equal length")

    def handle(self) -> dict[str, Any]:
        """Return the artefacts as a small JSON object."""
        handle: dict[str, Any] = msgspec.to_builtins(self)
        return handle


def artefacts_of(handle: object) -> JobArtefacts:
    """Return the artefacts that a handle names.

    Raises:
        InvalidInputError: The value is not a handle.
    """
    try:
        return convert(handle, JobArtefacts)
    except msgspec.ValidationError as error:
        raise InvalidInputError(
            f"artefacts={str(handle)[:120]!r} are not valid ({error}); nothing was set up; pass what an "
            "upload returned: the output of BlobUploadOperator"
        ) from None
