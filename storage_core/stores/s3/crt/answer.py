"""Answer: the results of a request, or S3's error, in boto3's form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from io import BytesIO
from typing import Any, Final

from botocore.exceptions import ClientError

from lockgate.storage_core.stores.s3.answers import CutAnswerError, check_whole, readable, timestamp
from lockgate.storage_core.stores.s3.crt.document import Document, read_document
from lockgate.storage_core.stores.s3.crt.operation import METADATA, Operation

_CONVERTED: Final[Mapping[str, Callable[[str], Any]]] = {
    "ContentLength": int,
    "Initiated": timestamp,
    "IsTruncated": "true".__eq__,
    "LastModified": parsedate_to_datetime,
}


@dataclass(frozen=True)
class Answer:
    """An HTTP answer that arrived.

    Attributes:
        status: HTTP status.
        headers: Names in lower case, and values.
        body: The whole body.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    @classmethod
    def of(cls, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> Answer:
        """Return an answer with these headers."""
        return cls(status, {name.lower(): value for name, value in headers}, body)


def results(operation: Operation, answer: Answer) -> dict[str, Any]:
    """Return the results of a request with boto3's names.

    Raises:
        ClientError: S3 refused the request, or answered 200 with an error.
        CutAnswerError: The answer did not arrive completely.
    """
    check_whole(
        operation.name, answer.status, answer.headers, answer.body, has_body=operation.method != "HEAD"
    )
    parsed: dict[str, Any] = {
        "ResponseMetadata": {"HTTPStatusCode": answer.status, "HTTPHeaders": answer.headers}
    }
    if answer.status >= 300:
        raise _refusal(operation, {**parsed, "Error": error_of(answer)})
    for name, value in answer.headers.items():
        if result := operation.answer_headers.get(name):
            parsed[result] = _converted(result, value)
    if operation.has_metadata:
        parsed["Metadata"] = {
            name.removeprefix(METADATA): value
            for name, value in answer.headers.items()
            if name.startswith(METADATA)
        }
    if operation.fields or (answer.body.lstrip().startswith(b"<") and not operation.has_stream):
        document = read_document(readable(operation.name, answer.body))
        if document.root == "Error":
            # As botocore: an error inside a 200 is a 500, whatever its code.
            parsed["ResponseMetadata"]["HTTPStatusCode"] = 500
            raise _refusal(operation, {**parsed, "Error": document.fields})
        parsed |= _documented(operation, document)
    if operation.has_stream:
        parsed["Body"] = BytesIO(answer.body)
    return parsed


def _refusal(operation: Operation, response: Any) -> ClientError:
    return ClientError(response, operation.name)


def error_of(answer: Answer) -> dict[str, str]:
    """Return the fields of S3's error: always `Code` and `Message`, and what else S3 sent."""
    error = {"Code": str(answer.status), "Message": "no message"}
    if answer.body.lstrip().startswith(b"<"):
        with suppress(CutAnswerError):  # a proxy's page: the status says enough
            error |= read_document(answer.body).fields
    return error


def _documented(operation: Operation, document: Document) -> dict[str, Any]:
    """Return the results in a document."""
    found: dict[str, Any] = {
        result: _converted(result, document.fields[name])
        for name, result in operation.fields.items()
        if name in document.fields
    }
    for name, result in operation.lists.items():
        if name in document.lists:
            found[result] = [
                {field: _converted(field, value) for field, value in item.items()}
                for item in document.lists[name]
            ]
    return found


def _converted(result: str, value: str) -> Any:
    """Return a result in the type that boto3 gives it, where a store does not read it as text."""
    return convert(value) if (convert := _CONVERTED.get(result)) else value
