"""Configuration, read into a frozen object. Nothing reads the environment at import.

The class `Settings` is imported on first use: DAG files are parsed often, and need only the intervals.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from lockgate.storage_core.settings.intervals import Intervals, load_intervals

if TYPE_CHECKING:
    from lockgate.storage_core.settings.model import MIB, Settings

__all__ = [
    "MIB",
    "Intervals",
    "Settings",
    "given_settings",
    "load_intervals",
    "load_settings",
    "settings_in_effect",
]

_IN_EFFECT: Final[ContextVar[Settings | None]] = ContextVar("lockgate-settings", default=None)


def __getattr__(name: str) -> Any:
    if name not in {"MIB", "Settings"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.model"), name)


@contextmanager
def settings_in_effect(settings: Settings | None) -> Iterator[None]:
    """Make `load_settings` return these settings within the block, in this context only; None: no change."""
    token = _IN_EFFECT.set(settings or _IN_EFFECT.get())
    try:
        yield
    finally:
        _IN_EFFECT.reset(token)


def given_settings() -> Settings | None:
    """Return the settings of the enclosing `settings_in_effect`; None if there is none."""
    return _IN_EFFECT.get()


def load_settings() -> Settings:
    """Return the settings of the enclosing `settings_in_effect`, else read them from the environment.

    Raises:
        InvalidInputError: Variables have invalid values; the message contains each.
    """
    if given := given_settings():
        return given
    from lockgate.storage_core.settings.model import read_settings  # noqa: PLC0415 - on first use

    return read_settings()
