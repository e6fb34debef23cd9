"""A receipt as Airflow carries it: a flat dictionary in XCom and in Asset events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
from airflow.sdk import Asset, AssetAlias

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lockgate.storage_core.commit import Receipt


def flat(receipt: Receipt) -> dict[str, Any]:
    """Return the receipt as JSON values without nesting: nested `extra` has failed in Airflow before."""
    return dict(msgspec.to_builtins(receipt))


def asset_of(destination: str) -> Asset:
    """Return the Asset that stands for a destination: its URL, in the ASCII that Airflow asks for."""
    return Asset(name=destination, uri=quote(destination, safe=":/%@+=,~()!*'"))


def announce(
    context: Context, destination: str, receipt: dict[str, Any], outlets: Iterable[Asset | AssetAlias]
) -> None:
    """Put the receipt on every outlet: on an Asset as it is, on an alias as the destination's Asset."""
    for outlet in outlets:
        event = context["outlet_events"][outlet]
        if isinstance(outlet, AssetAlias):
            event.add(asset_of(destination), extra={"destination": destination, **receipt})
        else:
            event.extra.update({"destination": destination, **receipt})
