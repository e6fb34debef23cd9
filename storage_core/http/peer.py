"""How messages name a server and the settings by which its clients reach it."""

from __future__ import annotations

import msgspec


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of server.

    Attributes:
        name: What messages call it.
        url_setting: Where its URL comes from.
        ca_setting: Setting of the certificates that verify it.
        example: A URL.
        advice: What to do after a change without an answer.
    """

    name: str
    url_setting: str
    ca_setting: str
    example: str
    advice: str
