"""Text and compression over a pending file; an exception in the block discards the file.

The standard wrappers always close the file below them, and so would keep half of it.
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
    """Return the file object for the caller, which writes to `output`.

    Args:
        output: The pending file.
        compression: A compression of fsspec, None for none.
        text: Encoding, errors and newline as for `io.TextIOWrapper`, None for bytes.
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
    """Compresses data for a pending file."""

    def __init__(self, output: PendingOutput, compression: str) -> None:
        self._output = output
        self._compressor = compr[compression](output, mode="w")

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Write bytes; the compressor may buffer them."""
        view = memoryview(data)
        self._compressor.write(view)
        return view.nbytes

    def close(self) -> None:
        """Finish the compression and close the file; on an error the file is discarded."""
        if not self.closed:
            super().close()
            with self._output:
                self._compressor.close()

    def forget(self) -> None:
        """Close this and the files below it without writing more."""
        super().close()
        self._output.forget()
        with suppress(ValueError, OSError):  # the compressor writes to a closed file
            self._compressor.close()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._output.drop()
        self.close()

    def __del__(self) -> None:
        """Do nothing: an unreferenced file belongs to its attempt."""


class TextOutput(io.TextIOWrapper):
    """Encodes text for a pending file, or for its compression."""

    def __init__(
        self, output: PendingOutput, binary: PendingOutput | CompressedOutput, options: Mapping[str, Any]
    ) -> None:
        super().__init__(binary, **options)  # type: ignore[arg-type]  # it cannot read
        self._output = output
        self._binary = binary

    def close(self) -> None:
        """Encode the rest and close the file; on an error the file is discarded."""
        if self.closed:
            return
        try:
            self.flush()
        except BaseException:
            self._output.drop()
            raise
        super().close()

    def forget(self) -> None:
        """Close this and the files below it without writing more."""
        self._binary.forget()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._output.drop()
        self.close()

    def __del__(self) -> None:
        """Do nothing: an unreferenced file belongs to its attempt."""
