"""What open uploads hold, and what that costs: nobody sees them, and S3 bills them like any object."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from lockgate.storage_core.commit.uploads.upload_owner import SweepAction, UploadFate
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
"""Bytes of the gigabyte that S3 bills."""


class UploadFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What some uploads add up to.

    Attributes:
        uploads: How many.
        size: Bytes of those whose bytes are known.
        unmeasured: How many others there are; the estimate leaves them out.
        monthly_cost_usd: At `LOCKGATE_STORAGE_PRICE_GB_MONTH`.
    """

    uploads: int
    size: int
    unmeasured: int
    monthly_cost_usd: float


def figures_of(fates: Iterable[UploadFate], settings: Settings) -> UploadFigures:
    """Add up uploads and estimate what they cost a month."""
    sizes = [fate.size for fate in fates]
    known = [size for size in sizes if size is not None]
    return UploadFigures(
        uploads=len(sizes),
        size=sum(known),
        unmeasured=len(sizes) - len(known),
        monthly_cost_usd=sum(known) / GB * settings.storage_price_gb_month,
    )


def figures_by_action(fates: Sequence[UploadFate], settings: Settings) -> dict[SweepAction, UploadFigures]:
    """Add up uploads by what becomes of them; an action that none meets is left out."""
    met = {action: [fate for fate in fates if fate.action is action] for action in SweepAction}
    return {action: figures_of(those, settings) for action, those in met.items() if those}


def measured(
    store: Store,
    fates: Sequence[UploadFate],
    actions: Collection[SweepAction],
    *,
    settings: Settings,
    progress: Progress,
) -> Iterator[UploadFate]:
    """Yield the uploads in their order; those with one of these actions with their bytes.

    What the listing did not tell is asked for. One that is gone meanwhile stays without: it costs nothing. So
    does one of which the store does not tell: figures must not keep orphans from going.
    """

    def ask(place: int) -> tuple[int, int | None]:
        try:
            return place, store.upload_bytes(fates[place].key, fates[place].upload_id)
        except (UploadGoneError, AccessDeniedError, StoreUnavailableError, OutcomeUnknownError):
            return place, None

    unknown = [place for place, fate in enumerate(fates) if fate.size is None and fate.action in actions]
    sizes: dict[int, int | None] = {}
    for place, size in in_parallel(ask, unknown, settings.parallelism):
        sizes[place] = size
        progress("measure uploads", len(sizes), len(unknown))
    for place, fate in enumerate(fates):
        yield msgspec.structs.replace(fate, size=sizes.get(place, fate.size))
