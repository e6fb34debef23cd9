"""Large XCom values as blobs: `[core] xcom_backend = lockgate.operators.xcom.BlobXCom`.

`BlobXCom` is imported on first use, so that `lockgate xcom sweep --help` does not import Airflow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockgate.operators.xcom.backend import BlobXCom

__all__ = ["BlobXCom"]


def __getattr__(name: str) -> Any:
    if name != "BlobXCom":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lockgate.operators.xcom.backend import BlobXCom

    return BlobXCom
