"""Keys of blobs: the hash of the bytes, the upload set, and a random part.

A key is `<SHA-256 of the bytes>-<upload set><random part>`, in hexadecimal. Two puts of the same bytes make
two keys and two copies, so deleting one never affects the other. The upload set shows, for bytes without a
row, whether a put that is under way may still record them.
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
"""Sixteen hexadecimal digits: the id of a client's uploads, or of a server's single puts."""

NO_JOB: Final = "no_job"
"""Job id of blobs that belong to no job."""

_KEY: Final = re.compile(r"(?P<digest>[0-9a-f]{64})-(?P<upload_set>[0-9a-f]{16})[0-9a-f]{16}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_SET: Final = re.compile(r"[0-9a-f]{16}")


def new_upload_set() -> UploadSetId:
    """Return a new id of an upload set: 64 random bits."""
    return UploadSetId(secrets.token_hex(8))


def new_blob_key(digest: str, upload_set: UploadSetId) -> BlobKey:
    """Return a new key for bytes with this SHA-256, put under an upload set."""
    return BlobKey(f"{digest}-{upload_set}{secrets.token_hex(8)}")


def digest_of(blob_key: BlobKey) -> str:
    """Return the SHA-256 of a blob's bytes, in hexadecimal."""
    return blob_key[:64]


def upload_set_of(blob_key: BlobKey) -> UploadSetId:
    """Return the upload set of a blob."""
    return UploadSetId(blob_key[65:81])


def check_blob_key(text: str) -> BlobKey:
    """Return the text as a blob key.

    Raises:
        InvalidInputError: It is not one.
    """
    if not _KEY.fullmatch(text):
        raise InvalidInputError(
            f"{text[:120]!r} is not a blob's key: 64 hexadecimal digits, a hyphen, 32 hexadecimal digits"
        )
    return BlobKey(text)


def is_blob_key(text: str) -> bool:
    """Return whether a text has the form of a blob key."""
    return _KEY.fullmatch(text) is not None


def check_digest(text: str) -> str:
    """Return the text if it is a SHA-256 in hexadecimal.

    Raises:
        InvalidInputError: It is not one.
    """
    if not _DIGEST.fullmatch(text):
        raise InvalidInputError(f"{text[:90]!r} is not a SHA-256: 64 hexadecimal digits, in lower case")
    return text


def check_upload_set(text: str) -> UploadSetId:
    """Return the text as the id of an upload set.

    Raises:
        InvalidInputError: It is not one.
    """
    if not _SET.fullmatch(text):
        raise InvalidInputError(f"{text[:60]!r} is not an upload set's id: 16 hexadecimal digits")
    return UploadSetId(text)


def check_blob_job(text: str) -> str:
    """Return the text if it can be a job id of blobs, or `no_job`.

    Raises:
        InvalidInputError: It cannot be a path segment.
    """
    return check_id("job id of a blob", text)


def is_blob_job(text: str) -> bool:
    """Return whether a text can be a job id of blobs."""
    try:
        check_blob_job(text)
    except InvalidInputError:
        return False
    return True
