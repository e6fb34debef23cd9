"""Build the demo's wheel, which is not installed, so that it can only be imported from its blob."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import zipfile
from pathlib import Path
from typing import Final

from examples.flights.data import flightdelays
from examples.flights.steps import DemoFailedError

MODULE: Final = "flightdelays"
TRANSFORM: Final = f"{MODULE}:with_word"
_VERSION: Final = "1.0"
_INFO: Final = f"{MODULE}-{_VERSION}.dist-info"


def build(folder: Path) -> Path:
    """Build the wheel and return its path.

    Raises:
        DemoFailedError: The library is installed, so importing it would prove nothing.
    """
    if importlib.util.find_spec(MODULE) is not None:
        raise DemoFailedError(f"the package {MODULE} is installed: uninstall it, the demo builds it itself")
    wheel = folder / f"{MODULE}-{_VERSION}-py3-none-any.whl"
    files = {
        f"{MODULE}.py": Path(flightdelays.__file__).read_bytes(),
        f"{_INFO}/METADATA": f"Metadata-Version: 2.1\nName: {MODULE}\nVersion: {_VERSION}\n".encode(),
        f"{_INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items())
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(f"{_INFO}/RECORD", f"{record}{_INFO}/RECORD,,\n")
    return wheel


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
