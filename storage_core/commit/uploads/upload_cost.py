"""Size and cost of open uploads. They are not visible in listings, but S3 bills them like objects."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from lockgate.storage_core.commit.uploads.upload_owner import OpenUpload, SweepAction
from lockgate.storage_core.concurrency import Progress, in_parallel
from lockgate.storage_core.errors import (
    AccessDeniedError,
    OutcomeUnknownError,
    StoreUnavailableError,
    UploadGoneError,
)
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import Store

GB: Final = 2**30
"""Bytes in a gigabyte as S3 bills it."""


class UploadTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of a set of uploads.

    Attributes:
        uploads: Number of uploads.
        size: Total bytes of the uploads of known size.
        unmeasured: Number of uploads of unknown size, which the cost does not include.
        monthly_cost_usd: Estimated cost at `LOCKGATE_STORAGE_PRICE_GB_MONTH`.
    """

    uploads: int
    size: int
    unmeasured: int
    monthly_cost_usd: float


def upload_totals(uploads: Iterable[OpenUpload], settings: Settings) -> UploadTotals:
    """Return the totals of uploads, with their estimated cost per month."""
    sizes = [upload.size for upload in uploads]
    known = [size for size in sizes if size is not None]
    return UploadTotals(
        uploads=len(sizes),
        size=sum(known),
        unmeasured=len(sizes) - len(known),
        monthly_cost_usd=sum(known) / GB * settings.storage_price_gb_month,
    )


def totals_by_action(uploads: Sequence[OpenUpload], settings: Settings) -> dict[SweepAction, UploadTotals]:
    """Return the totals of uploads by action; actions without uploads are omitted."""
    by_action = {action: [upload for upload in uploads if upload.action is action] for action in SweepAction}
    return {action: upload_totals(chosen, settings) for action, chosen in by_action.items() if chosen}


def measure_uploads(
    store: Store,
    uploads: Sequence[OpenUpload],
    actions: Collection[SweepAction],
    *,
    settings: Settings,
    progress: Progress,
) -> Iterator[OpenUpload]:
    """Yield the uploads in order, with the sizes of those that have one of these actions.

    Sizes missing from the listing are requested. An upload that is gone, or whose size the store does not
    return, stays without: a missing size must not stop the sweep.
    """

    def request_size(index: int) -> tuple[int, int | None]:
        try:
            return index, store.upload_bytes(uploads[index].key, uploads[index].upload_id)
        except (UploadGoneError, AccessDeniedError, StoreUnavailableError, OutcomeUnknownError):
            return index, None

    unknown = [
        index for index, upload in enumerate(uploads) if upload.size is None and upload.action in actions
    ]
    sizes: dict[int, int | None] = {}
    for index, size in in_parallel(request_size, unknown, settings.near_calls, settings.far_calls):
        sizes[index] = size
        progress("measure uploads", len(sizes), len(unknown))
    for index, upload in enumerate(uploads):
        yield msgspec.structs.replace(upload, size=sizes.get(index, upload.size))
