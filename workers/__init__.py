"""The Celery workers of Lockgate: `celery -A lockgate.workers worker -Q commit,recovery,sweep`.

`app` is built on first use, so that this package is cheap to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockgate.workers.celery_app import app

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    if name == "app":
        from lockgate.workers.celery_app import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
