"""Text and compression over a pending file: an exception in their block drops the file, as in its own.

The standard wrappers close what lies below them whatever happened, and so would keep half a file.
"""

from __future__ import annotations

import io
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fsspec.compression import compr  # type: ignore[import-untyped]  # fsspec has no types

from lockgate.storage_core.fsspec.pending import PendingOutput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import ReadableBuffer


def layered(
    output: PendingOutput, *, compression: str | None, text: Mapping[str, Any] | None
) -> PendingOutput | CompressedOutput | TextOutput:
    """Return what a caller writes to, so that the bytes arrive in `output`.

    Args:
        output: The pending file.
        compression: One of fsspec's, None for none.
        text: Encoding, errors and newline as `io.TextIOWrapper` takes them, None for bytes.
    """
    try:
        binary = output if compression is None else CompressedOutput(output, compression)
        layers = binary if text is None else TextOutput(output, binary, text)
    except BaseException:
        output.drop()
        raise
    output.outermost = layers
    return layers


class CompressedOutput(io.RawIOBase):
    """Compresses what is written to a pending file."""

    def __init__(self, output: PendingOutput, compression: str) -> None:
        self._output = output
        self._compressor = compr[compression](output, mode="w")

    def writable(self) -> bool:
        """Tell that it can be written."""
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Take bytes; the compressor may hold them back until the end."""
        view = memoryview(data)
        self._compressor.write(view)
        return view.nbytes

    def close(self) -> None:
        """Write the compression's end and seal the file; if that fails, the file is dropped."""
        if not self.closed:
            super().close()
            with self._output:
                self._compressor.close()

    def forget(self) -> None:
        """Close it and what lies below, and write nothing more."""
        super().close()
        self._output.forget()
        with suppress(ValueError, OSError):  # it writes its end to a closed file
            self._compressor.close()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._output.drop()
        self.close()

    def __del__(self) -> None:
        """Leave a forgotten file to its attempt."""


class TextOutput(io.TextIOWrapper):
    """Encodes what is written to a pending file, or to its compression."""

    def __init__(
        self, output: PendingOutput, binary: PendingOutput | CompressedOutput, options: Mapping[str, Any]
    ) -> None:
        super().__init__(binary, **options)  # type: ignore[arg-type]  # it cannot read
        self._output = output
        self._binary = binary

    def close(self) -> None:
        """Encode what is left and seal the file; if that fails, the file is dropped."""
        if self.closed:
            return
        try:
            self.flush()
        except BaseException:
            self._output.drop()
            raise
        super().close()

    def forget(self) -> None:
        """Close it and what lies below, and write nothing more."""
        self._binary.forget()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._output.drop()
        self.close()

    def __del__(self) -> None:
        """Leave a forgotten file to its attempt."""
