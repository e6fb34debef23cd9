"""User metadata of a file: words that a store keeps with the object, such as `{"pipeline": "nightly"}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from lockgate.storage_core.errors import InvalidInputError

MAX_METADATA_BYTES: Final = 1900
"""S3 takes 2 KB for all of an object's metadata, the owner token among them."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_VALUE: Final = re.compile(r"[!-~]([ -~]*[!-~])?")
_RESERVED: Final = "lockgate-"


def check_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata if every store that keeps any can keep it as it is.

    Raises:
        InvalidInputError: A name is not lower-case letters, digits and hyphens, or is one of ours; a value is
            empty, padded with spaces or not printable ASCII; or all together are too long.
    """
    for name, value in metadata.items():
        if not _NAME.fullmatch(name) or name.startswith(_RESERVED):
            raise InvalidInputError(
                f"metadata {name[:80]!r}: names are 1 to 64 lower-case letters, digits and hyphens, and "
                f"{_RESERVED}… is taken"
            )
        if not _VALUE.fullmatch(value):
            raise InvalidInputError(
                f"metadata {name!r}: its value {value[:80]!r} must be printable ASCII, not padded"
            )
    if sum(len(name) + len(value) for name, value in metadata.items()) > MAX_METADATA_BYTES:
        raise InvalidInputError(f"metadata: more than {MAX_METADATA_BYTES} bytes of names and values")
    return dict(metadata)
