"""botocore's parser of S3's answers, without the two steps that take most of its time.

It asks for each header that an operation may answer with, more than thirty for a GetObject, where few come;
and it reads dates with a parser of any format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, Self

from botocore.model import Shape
from botocore.parsers import ResponseParserFactory, RestXMLParser
from botocore.utils import parse_timestamp


class Members(NamedTuple):
    """What of an answer stands in its headers.

    Attributes:
        by_header: Names and shapes by the header, in lower case.
        of_many_headers: Those that gather all headers of a prefix.
    """

    by_header: Mapping[str, tuple[str, Shape]]
    of_many_headers: Sequence[tuple[str, Shape]]

    @classmethod
    def of(cls, members: Mapping[str, Shape]) -> Self:
        """Sort the members of an operation's answer."""
        places = [(name, member, member.serialization.get("location")) for name, member in members.items()]
        return cls(
            {
                member.serialization.get("name", name).lower(): (name, member)
                for name, member, place in places
                if place == "header"
            },
            [(name, member) for name, member, place in places if place == "headers"],
        )


class LeanParser(RestXMLParser):
    """Parses what came, header by header; says the same."""

    _parse_shape: Callable[[Shape, Any], Any]
    _parse_header_map: Callable[[Shape, Mapping[str, str]], dict[str, str]]

    def __init__(self) -> None:
        super().__init__(timestamp_parser=timestamp)
        self._members: dict[str, Members] = {}

    def _parse_non_payload_attrs(
        self,
        response: Mapping[str, Any],
        shape: Shape,
        member_shapes: Mapping[str, Shape],
        final_parsed: dict[str, Any],
    ) -> None:
        members = self._members.get(shape.name)
        if members is None:
            members = self._members[shape.name] = Members.of(member_shapes)
        headers = response["headers"]
        for header in headers:
            known = members.by_header.get(header.lower())
            if known is not None:
                final_parsed[known[0]] = self._parse_shape(known[1], headers[header])
        for name, member in members.of_many_headers:
            final_parsed[name] = self._parse_header_map(member, headers)


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
