"""The names of blobs: a key says what the bytes hash to, and who may still record them.

A key is `<SHA-256 of the bytes>-<upload set><random part>`, all in hexadecimal. The same bytes put twice are
two keys and two copies, so that no owner's deletion can take another's blob. The upload set in the key tells
whoever finds bytes that the journal does not know whether an upload under way may still record them.
"""

from __future__ import annotations

import re
import secrets
from typing import Final, NewType

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.ids import check_id

BlobKey = NewType("BlobKey", str)
"""`<64 hexadecimal digits>-<32 hexadecimal digits>`."""

UploadSetId = NewType("UploadSetId", str)
"""Sixteen hexadecimal digits: uploads that belong together, or a server's own."""

NO_JOB: Final = "no_job"
"""The job id of blobs that belong to none."""

_KEY: Final = re.compile(r"(?P<digest>[0-9a-f]{64})-(?P<upload_set>[0-9a-f]{16})[0-9a-f]{16}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_SET: Final = re.compile(r"[0-9a-f]{16}")


def new_upload_set() -> UploadSetId:
    """Return a fresh id of an upload set: 64 random bits."""
    return UploadSetId(secrets.token_hex(8))


def new_blob_key(digest: str, upload_set: UploadSetId) -> BlobKey:
    """Return a fresh key for bytes.

    Args:
        digest: SHA-256 of the bytes, in hexadecimal.
        upload_set: Under which they are put.
    """
    return BlobKey(f"{digest}-{upload_set}{secrets.token_hex(8)}")


def digest_of(blob_key: BlobKey) -> str:
    """Return the SHA-256, in hexadecimal, that a blob's bytes must have."""
    return blob_key[:64]


def upload_set_of(blob_key: BlobKey) -> UploadSetId:
    """Return the upload set that a blob was put under."""
    return UploadSetId(blob_key[65:81])


def check_blob_key(text: str) -> BlobKey:
    """Return a text that is a blob's key.

    Raises:
        InvalidInputError: It is none.
    """
    if not _KEY.fullmatch(text):
        raise InvalidInputError(
            f"{text[:120]!r} is not a blob's key: 64 hexadecimal digits, a hyphen, 32 hexadecimal digits"
        )
    return BlobKey(text)


def is_blob_key(text: str) -> bool:
    """Tell whether a text has the form of a blob's key."""
    return _KEY.fullmatch(text) is not None


def check_digest(text: str) -> str:
    """Return a text that is a SHA-256 in hexadecimal.

    Raises:
        InvalidInputError: It is none.
    """
    if not _DIGEST.fullmatch(text):
        raise InvalidInputError(f"{text[:90]!r} is not a SHA-256: 64 hexadecimal digits, in lower case")
    return text


def check_upload_set(text: str) -> UploadSetId:
    """Return a text that is an upload set's id.

    Raises:
        InvalidInputError: It is none.
    """
    if not _SET.fullmatch(text):
        raise InvalidInputError(f"{text[:60]!r} is not an upload set's id: 16 hexadecimal digits")
    return UploadSetId(text)


def check_blob_job(text: str) -> str:
    """Return the id of a job, or `no_job`, as the name of a folder of blobs.

    Raises:
        InvalidInputError: It cannot be one segment of a path.
    """
    return check_id("job id of a blob", text)


def is_blob_job(text: str) -> bool:
    """Tell whether a text can be the name of a folder of blobs."""
    try:
        check_blob_job(text)
    except InvalidInputError:
        return False
    return True
