"""Write what `lockgate store check` finds in each look-alike into the page of known stores: `make docs`."""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.stores.probe import probe
from tests.support.fake_s3 import Options
from tests.support.s3.destination import s3_world
from tests.support.s3.lookalikes import lookalikes

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "stores.md"
BEGIN: Final = "<!-- Written by `make docs` from tests/support/s3/lookalikes.py. -->\n"
END: Final = "<!-- end -->\n"
_PROBED: Final = re.compile(r"_lockgate/probe/[^ :;]*")
_AWS: Final = Options(upload_expiry_days=7)
_FAKES: Final = {
    "Amazon S3, as the tests' model": _AWS,
    "ignores conditions of a create": Options(conditional_create=False, upload_expiry_days=7),
    "ignores conditions of a put": Options(conditional_put=False, upload_expiry_days=7),
    "ignores conditions of a deletion": Options(conditional_delete=False, upload_expiry_days=7),
    "no lifecycle rule": Options(),
}


def page() -> str:
    """Return the page with its table made again."""
    head, _, rest = PAGE.read_text().partition(BEGIN)
    table = [
        "| store that is played | promise that is broken | what the check says |",
        "|---|---|---|",
        *_rows(),
    ]
    return head + BEGIN + "".join(f"{line}\n" for line in table) + END + rest.partition(END)[2]


def _rows() -> Iterator[str]:
    for name in _FAKES:
        yield from _found(name, _FAKES[name], None)
    for name in lookalikes():
        yield from _found(name, _AWS, name)


def _found(shown: str, options: Options, name: str | None) -> Iterator[str]:
    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
        s3_world(Path(folder), patch, options) as world,
    ):
        world.fake.lookalike = None if name is None else lookalikes()[name]
        try:
            findings = probe(world.driver.store, thorough=True).findings
            broken = {found.name: found.detail for found in findings if not found.ok}
        except LockgateError as error:
            broken = {"objects may be written": str(error)}
    for number, (promise, detail) in enumerate(broken.items() or [("none", "")]):
        text = _PROBED.sub("_lockgate/probe/…", detail).replace("|", "/").replace("\n", " ")
        yield f"| {'' if number else shown} | {promise} | {text} |"


if __name__ == "__main__":
    logging.disable()
    PAGE.write_text(page())
