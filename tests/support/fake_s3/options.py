"""Options in which real stores differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lockgate.storage_core.settings import MIB


@dataclass(frozen=True)
class Options:
    """The behaviour of this store where stores differ; the default is that of AWS today.

    Attributes:
        repeated_completion: Response to the second completion of an upload. AWS has returned both.
        conditional_create: False: `If-None-Match` is ignored silently, as by some compatible stores.
        conditional_put: False: `If-Match` of a PUT or a completion is ignored.
        conditional_delete: False: `If-Match` of a DELETE, and the ETags of a batch, are ignored.
        conflict_ends_upload: A 409 on a conditional completion destroys the upload.
        page_size: Maximum length of a page of any listing, even if a request asks for more.
        min_part_bytes: Minimum size of all parts but the last.
        keeps_parts: False: the bytes of parts are checked and counted, then dropped.
        encodes_uploads: False: a listing of uploads ignores `encoding-type`, and its XML may not be valid.
        upload_expiry_days: Days after which the bucket's lifecycle rule aborts uploads; None: no rule.
    """

    repeated_completion: Literal["succeeds", "no such upload"] = "no such upload"
    conditional_create: bool = True
    conditional_put: bool = True
    conditional_delete: bool = True
    conflict_ends_upload: bool = True
    page_size: int = 1000
    min_part_bytes: int = 5 * MIB
    keeps_parts: bool = True
    encodes_uploads: bool = True
    upload_expiry_days: int | None = None
