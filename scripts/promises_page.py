"""Write the page of promises from `tests/promises.toml` and the rules of the protocol model: `make docs`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.model.commit.configurations import DROPS

REPOSITORY: Final = Path(__file__).parents[1]
SOURCE: Final = REPOSITORY / "tests" / "promises.toml"
PAGE: Final = REPOSITORY / "docs" / "internals" / "promises.md"
HEAD: Final = """\
<!-- Written by `make docs` from tests/promises.toml and tests/model/commit: change those. -->
# Promises and their tests

Each promise, and the tests that prove it. `grep -rn "def <name>" tests` finds a test.
[How Lockgate is tested](testing.md) describes the suites.
"""
RULES: Final = """\
## Rules of the commit protocol

The protocol model drops each rule and then finds the shortest order of steps that breaks the promise.
`python -m tests.model.commit traces` prints it.

| rule | what breaks without it |
|---|---|"""

Promises = Mapping[str, Mapping[str, list[str]]]
"""The tests of each promise, by the heading and the promise."""


def promises() -> Promises:
    """Return the list of `tests/promises.toml`."""
    return tomllib.loads(SOURCE.read_text())


def page() -> str:
    """Return the page."""
    rules = (f"| {rule[0].upper()}{rule[1:]} | {drop.broken} |" for rule, drop in DROPS.items())
    return "\n".join([HEAD, *_sections(promises()), RULES, *rules, ""])


def _sections(listed: Promises) -> Iterator[str]:
    for heading, rows in listed.items():
        yield f"## {heading}\n\n| promise | tests |\n|---|---|"
        for promise, tests in rows.items():
            yield f"| {promise} | {'<br>'.join(f'`{test}`' for test in tests)} |"
        yield ""


if __name__ == "__main__":
    PAGE.write_text(page())
