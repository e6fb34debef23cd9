"""The settings of the pages: those of the connection that tasks have by default, as it is now."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from airflow.sdk.exceptions import AirflowNotFoundException

from lockgate.operators.connections import connected_settings, connections_as_text
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import Settings, load_settings

EVERY_S: Final = 30.0
"""How long settings are kept before the connection is read again."""


class DefaultConnection:
    """Returns the settings of `lockgate_default`, or of the environment if Airflow has no such connection.

    The pages then read what tasks write that name no connection. It is read again at times: it may be made,
    or its password changed, after the server has started.

    Args:
        monotonic_s: The clock, for tests.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._read_s = float("-inf")
        self._text: tuple[str, ...] = ()
        self._settings: Settings | None = None

    def __call__(self) -> Settings:
        """Return the settings: the same object as before while the connection is the same.

        Raises:
            InvalidInputError: The connection, or a variable of the environment, is invalid.
            MissingPartError: It names an AWS connection, and the Amazon provider is not installed here.
        """
        with self._lock:
            if self._settings is None or self._monotonic_s() - self._read_s >= EVERY_S:
                text = connections_as_text()
                if self._settings is None or text != self._text:
                    self._settings = self._connected()
                self._text, self._read_s = text, self._monotonic_s()
            return self._settings

    def _connected(self) -> Settings:
        try:
            return connected_settings(None, None) or load_settings()
        except AirflowNotFoundException as error:  # it names an AWS connection that does not exist
            raise InvalidInputError(str(error)) from error
