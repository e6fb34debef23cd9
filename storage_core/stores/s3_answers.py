"""botocore's parser of S3's answers, without the two steps that take most of its time.

It asks for each header that an operation may answer with, more than thirty for a GetObject, where few come;
and it reads dates with a parser of any format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from botocore.model import Shape
from botocore.parsers import ResponseParserFactory, RestXMLParser
from botocore.utils import parse_timestamp


class LeanParser(RestXMLParser):
    """Parses what came, header by header; says the same."""

    _parse_shape: Callable[[Shape, Any], Any]
    _parse_header_map: Callable[[Shape, Mapping[str, str]], dict[str, str]]

    def __init__(self) -> None:
        super().__init__(timestamp_parser=timestamp)
        self._members: dict[str, dict[str, tuple[str, Shape]]] = {}

    def _parse_non_payload_attrs(
        self,
        response: Mapping[str, Any],
        shape: Shape,
        member_shapes: Mapping[str, Shape],
        final_parsed: dict[str, Any],
    ) -> None:
        members = self._members.get(shape.name)
        if members is None:
            members = self._members[shape.name] = _by_header(member_shapes)
        for header, value in response["headers"].items():
            known = members.get(header.lower())
            if known is not None:
                final_parsed[known[0]] = self._parse_shape(known[1], value)
        for name, member in member_shapes.items():
            if member.serialization.get("location") == "headers":
                final_parsed[name] = self._parse_header_map(member, response["headers"])


class LeanParsers(ResponseParserFactory):
    """Gives everyone the one parser: it keeps nothing of an answer."""

    def __init__(self) -> None:
        super().__init__()
        self._parser = LeanParser()

    def create_parser(self, protocol_name: str) -> LeanParser:  # noqa: ARG002 - S3 has but one
        """Return the parser."""
        return self._parser


def timestamp(value: Any) -> datetime:
    """Read a date as HTTP's headers have it at once, any other as botocore does."""
    if isinstance(value, str) and value.endswith(" GMT"):
        try:
            return parsedate_to_datetime(value)
        except ValueError:
            pass
    return parse_timestamp(value)


def _by_header(members: Mapping[str, Shape]) -> dict[str, tuple[str, Shape]]:
    return {
        member.serialization.get("name", name).lower(): (name, member)
        for name, member in members.items()
        if member.serialization.get("location") == "header"
    }
