"""A strict parser of the XML documents in requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree import ElementTree as ET

from tests.support.fake_s3.refusal import Refusal
from tests.support.fake_s3.wire import Request

_MAX_KEYS = 1000


def parts_of(request: Request) -> Sequence[Mapping[str, str]]:
    """Return the parts that a completion names, in its order."""
    root = _root(request, "CompleteMultipartUpload")
    parts = [_fields(part, "Part", {"PartNumber", "ETag", "ChecksumCRC32"}) for part in root]
    if not parts or any("PartNumber" not in part or "ETag" not in part for part in parts):
        raise _malformed("a completion names at least one part, each with its number and its ETag")
    return parts


def deletions_of(request: Request) -> tuple[Sequence[Mapping[str, str]], bool]:
    """Return the objects that a batch deletes, and whether only failures are reported."""
    objects, quiet = [], False
    for child in _root(request, "Delete"):
        if _name(child) == "Quiet":
            quiet = child.text == "true"
        else:
            objects.append(_fields(child, "Object", {"Key", "ETag"}))
    if not 1 <= len(objects) <= _MAX_KEYS or any("Key" not in one for one in objects):
        raise _malformed(f"a batch deletes 1 to {_MAX_KEYS} keys, not {len(objects)}")
    return objects, quiet


def _root(request: Request, wanted: str) -> ET.Element:
    try:
        root = ET.fromstring(request.body)
    except ET.ParseError:
        raise _malformed("the body is no XML") from None
    if _name(root) != wanted:
        raise _malformed(f"the body is a {_name(root)}, not a {wanted}")
    return root


def _fields(element: ET.Element, wanted: str, known: set[str]) -> Mapping[str, str]:
    fields = {_name(child): child.text or "" for child in element}
    if _name(element) != wanted or not fields.keys() <= known:
        raise _malformed(f"{_name(element)} with {', '.join(fields)}")
    return fields


def _name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _malformed(what: str) -> Refusal:
    return Refusal(400, "MalformedXML", f"The XML you provided was not well-formed: {what}")
