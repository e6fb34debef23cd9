"""Lines of a token file, read by server and client."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

import msgspec

from lockgate.storage_core.errors import InvalidInputError

SHORTEST: Final = 16
"""Minimum length of a token in characters; a shorter one could be guessed."""

EXAMPLE: Final = (
    "a line looks like `3f9c…e1 sales-* flights-*`: a token, and the jobs or volumes that it opens, * for all"
)


class TokenLine(msgspec.Struct, frozen=True):
    """A token, the number of its line, and the patterns of the names that it opens."""

    number: int
    token: str
    patterns: tuple[str, ...]


def first_token(path: Path) -> str:
    """Return the first token of a file, which a client sends.

    Raises:
        InvalidInputError: As for `read_token_lines`, or the file has no token.
    """
    for line in read_token_lines(path):
        return line.token
    raise InvalidInputError(f"token file {path} has no token; a client sends the one in its first line")


def read_token_lines(path: Path) -> list[TokenLine]:
    """Return the lines of a file that have a token.

    Raises:
        InvalidInputError: The file cannot be read, others may read or write it, or a token is too short.
    """
    try:
        with path.open(encoding="ascii") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IROTH | stat.S_IWOTH):
                raise InvalidInputError(
                    f"token file {path} can be read or written by everybody; run `chmod 600 {path}`, and "
                    "make new tokens"
                )
            lines = file.read().splitlines()
    except OSError as error:
        raise InvalidInputError(f"token file {path}: {error.strerror}; name one that can be read") from None
    except UnicodeDecodeError:
        raise InvalidInputError(f"token file {path} is not plain text; {EXAMPLE}") from None
    found = []
    for number, line in enumerate(lines, start=1):
        token, *jobs = line.partition("#")[0].split() or [""]
        if token and len(token) < SHORTEST:
            raise InvalidInputError(
                f"token file {path}, line {number}: the token is shorter than {SHORTEST} characters; make "
                "one with `openssl rand -hex 32`"
            )
        if token:
            found.append(TokenLine(number, token, tuple(jobs)))
    return found
