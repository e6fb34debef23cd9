"""Documents of S3 are read into fields and lists, or refused."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.storage_core.stores.s3.answers import CutAnswerError
from lockgate.storage_core.stores.s3.crt.document import read_document

LISTING: Final = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n'
    b'<ListMultipartUploadsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    b"<Bucket>lake</Bucket><KeyMarker/><IsTruncated>true</IsTruncated>"
    b"<Upload><Key>a &amp; b\xc3\xa9</Key><UploadId>1</UploadId>"
    b"<Owner><ID>o</ID><Key>other</Key></Owner><Initiated>2026-11-22T10:00:00Z</Initiated></Upload>\n"
    b"<Upload><Key>c</Key><UploadId>2</UploadId></Upload>"
    b"<CommonPrefixes><Prefix>d/</Prefix></CommonPrefixes>"
    b"</ListMultipartUploadsResult>"
)


def test_a_listing_has_fields_and_lists() -> None:
    document = read_document(LISTING)
    assert document.root == "ListMultipartUploadsResult"
    assert document.fields == {"Bucket": "lake", "KeyMarker": "", "IsTruncated": "true"}
    assert document.lists == {
        "Upload": [
            {"Key": "a & bé", "UploadId": "1", "Initiated": "2026-11-22T10:00:00Z"},
            {"Key": "c", "UploadId": "2"},
        ],
        "CommonPrefixes": [{"Prefix": "d/"}],
    }


def test_a_document_that_ends_early_is_refused() -> None:
    for end in range(len(LISTING)):
        with pytest.raises(CutAnswerError, match="not complete"):
            read_document(LISTING[:end])


@pytest.mark.parametrize(
    "body",
    [
        b"<x>&unknown;</x>",
        b"<x><y></x></y>",
        b"<x/><y/>",
    ],
    ids=["unknown entity", "crossed", "two roots"],
)
def test_what_is_no_document_of_s3_is_refused(body: bytes) -> None:
    with pytest.raises(CutAnswerError):
        read_document(body)


@given(
    st.binary(max_size=60) | st.binary(max_size=30).map(lambda noise: LISTING[:200] + noise + LISTING[200:])
)
def test_no_bytes_raise_another_error(body: bytes) -> None:
    try:
        read_document(body)
    except CutAnswerError as error:
        assert "document" in str(error)  # noqa: PT017 - which of two outcomes is allowed


@pytest.mark.timeout(20)
def test_a_text_of_a_million_lines_is_read_in_linear_time() -> None:
    lines = b"\n" * 2**20
    assert read_document(b"<x><y>" + lines + b"</y></x>").fields == {"y": lines.decode()}
