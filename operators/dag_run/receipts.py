"""Put receipts into XCom and Asset events, as flat dictionaries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
from airflow.sdk import Asset, AssetAlias

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lockgate.storage_core.commit.records.log_records import Receipt


def flat(receipt: Receipt) -> dict[str, Any]:
    """Return the receipt as a flat dictionary of JSON values: Airflow has failed on a nested `extra`."""
    return dict(msgspec.to_builtins(receipt))


def asset_of(destination: str) -> Asset:
    """Return the Asset of a destination: its URL, in the ASCII that Airflow requires."""
    return Asset(name=destination, uri=quote(destination, safe=":/%@+=,~()!*'"))


def announce(
    context: Context, destination: str, receipt: dict[str, Any], outlets: Iterable[Asset | AssetAlias]
) -> None:
    """Add the receipt to the event of every outlet; for an alias, to that of the destination's Asset."""
    for outlet in outlets:
        event = context["outlet_events"][outlet]
        if isinstance(outlet, AssetAlias):
            event.add(asset_of(destination), extra={"destination": destination, **receipt})
        else:
            event.extra.update({"destination": destination, **receipt})
