"""Translate errors of botocore and S3 to the matching `LockgateError`.

A call that was never sent, or refused with a definite answer, was not applied. After a timeout, a status of
500 and above, or an error inside a 200 response, the outcome is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from typing import Final

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    InvalidRegionError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProxyConnectionError,
    SSLError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from lockgate.storage_core.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    InvalidInputError,
    LockgateError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StoreUnavailableError,
    UnsupportedStoreError,
    UploadGoneError,
)

_PUT: Final = "s3:PutObject (its policy may want an encryption or ACL: LOCKGATE_S3_SSE, LOCKGATE_S3_ACL)"
_PERMISSIONS: Final = {
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "CompleteMultipartUpload": "s3:PutObject",
    "CreateMultipartUpload": _PUT,
    "DeleteObject": "s3:DeleteObject",
    "DeleteObjects": "s3:DeleteObject",
    "GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject (and s3:ListBucket, to learn that an object is absent)",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "ListObjectsV2": "s3:ListBucket",
    "ListParts": "s3:ListMultipartUploadParts",
    "PutObject": _PUT,
    "UploadPart": "s3:PutObject",
}
NO_CREDENTIALS: Final = (
    NoCredentialsError,
    PartialCredentialsError,
    CredentialRetrievalError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)
NO_CONNECTION: Final = (EndpointConnectionError, ConnectTimeoutError, ProxyConnectionError)
_NOT_TRUSTED: Final = ("CERTIFICATE_VERIFY_FAILED", "doesn't match", "subjectAltName")
"""Parts of the errors of `ssl` and urllib3 for a certificate."""
_DENIED: Final = (
    AccessDeniedError,
    "{effect}; check the credentials, and that they allow {permission} on it",
)
_EXPIRED: Final = (AccessDeniedError, "{effect}; the credentials have expired: get new ones")
_CLOCK: Final = (AccessDeniedError, "{effect}; set this machine's clock, which differs from that of S3")
_ELSEWHERE: Final = (
    AccessDeniedError,
    "{effect}; the bucket is in another region: set LOCKGATE_S3_REGION to it",
)
_BUSY: Final = (StoreUnavailableError, ": another change was under way{effect}; try again")
_LATER: Final = (StoreUnavailableError, "{effect}; try again later")
_REFUSALS: Final[dict[str, tuple[type[LockgateError], str]]] = {
    "NoSuchUpload": (UploadGoneError, "{effect}; read the object to learn whether it is complete"),
    "NoSuchBucket": (
        ObjectNotFoundError,
        ": there is no bucket {bucket!r}{effect}; create it, or correct the destination",
    ),
    "404": (ObjectNotFoundError, ": there is no such object{effect}; check the key"),
    "403": _DENIED,
    "AccessDenied": _DENIED,
    "ExpiredToken": _EXPIRED,
    "InvalidAccessKeyId": _DENIED,
    "InvalidToken": _DENIED,
    "RequestExpired": _CLOCK,
    "RequestTimeTooSkewed": _CLOCK,
    "SignatureDoesNotMatch": _DENIED,
    "TokenRefreshRequired": _EXPIRED,
    "XAdminUserNotFound": _DENIED,  # Versity's code, with status 404, for an unknown access key
    "301": _ELSEWHERE,
    "307": _ELSEWHERE,
    "AuthorizationHeaderMalformed": _ELSEWHERE,
    "IllegalLocationConstraintException": _ELSEWHERE,
    "405": (UnsupportedStoreError, "{effect}; this store cannot do that"),
    "501": (UnsupportedStoreError, "{effect}; this store cannot do that"),
    "KeyTooLongError": (InvalidInputError, "{effect}; choose a shorter name"),
    "ConditionalRequestConflict": _BUSY,
    "OperationAborted": _BUSY,
    "BadDigest": _LATER,
    "RequestTimeout": _LATER,
    "XAmzContentChecksumMismatch": _LATER,
}
"""Error class and end of the message for a definite refusal, by code, else by status."""

_OF_AN_UPLOAD: Final = ("AbortMultipartUpload", "CompleteMultipartUpload", "ListParts", "UploadPart")
"""Operations whose 404 means that the upload is not open, whatever its code says is missing."""

_CHECKSUMS: Final = (
    UnsupportedStoreError,
    "{effect}; this store may not take checksums: set AWS_REQUEST_CHECKSUM_CALCULATION=when_required and "
    "AWS_RESPONSE_CHECKSUM_VALIDATION=when_required",
)
_NAMES_CHECKSUM: Final = re.compile("x-amz-(sdk-)?checksum|x-amz-trailer|STREAMING-UNSIGNED", re.IGNORECASE)
"""What a look-alike's refusal names if it does not know checksums."""

_CONCURRENT: Final = frozenset({"ConditionalRequestConflict", "OperationAborted", "409"})
"""Codes of a 409 that another request caused. Others, such as `ObjectParentIsFile`, are definite refusals."""
_THROTTLED: Final = frozenset({"SlowDown", "ServiceUnavailable", "Throttling", "RequestLimitExceeded"})
_SECRETS: Final = (
    (re.compile(r"(?s)(Invalid header value ).*"), r"\1<hidden>"),
    # A user and a password in a URL. They may hold a slash or an at sign; the URL may lack its scheme.
    (re.compile(r"(?<=//)[^/\s]+@"), ""),
    (re.compile(r"(?<=//)[^/\s:@]+:(?!\d+/)[^\s@]*@"), ""),
    (re.compile(r"[^\s/:@`'\"]+:[^\s/@]+@"), ""),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b"), "<access key>"),
    (
        re.compile(r"(?i)((?:secret|token|signature|credential|password)[\w-]*\s*[=:]\s*)[^\s,;&]+"),
        r"\1<hidden>",
    ),
)
_MAX_LENGTH: Final = 300


@dataclass(frozen=True)
class RequestInfo:
    """Description of a request for error messages.

    Attributes:
        operation: S3's name of the operation.
        url: URL of the object or listing.
        bucket: Name of the bucket.
        changes: Whether it changes anything: only then can its outcome be unknown.
        if_absent: Whether it creates an object only if there is none.
    """

    operation: str
    url: str
    bucket: str
    changes: bool
    if_absent: bool = False

    def __str__(self) -> str:
        return f"{self.operation} {self.url}"

    @property
    def no_effect(self) -> str:
        """The part of a message that describes the effect of a refused request."""
        return "; nothing was changed" if self.changes else ""


@contextmanager
def translated(request: RequestInfo) -> Iterator[None]:
    """Translate every error of botocore, and of the HTTP library below it, within.

    The original error is not chained, because its text may contain credentials.
    """
    try:
        yield
    except ClientError as error:
        raise _error_from_response(request, error) from None
    except (BotoCoreError, ResponseParserError, HTTPError, HTTPException) as error:
        raise _error_from_transport(request, error) from None
    except KeyError as error:
        raise _error_from_transport(request, HTTPClientError(error=f"the answer has no {error}")) from None
    except (LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        # Of an answer that cannot be read, or of credentials that cannot be refreshed.
        odd = HTTPClientError(error=f"the call failed oddly: {error!r}")
        raise _error_from_transport(request, odd) from None


def scrubbed(error: object) -> str:
    """Return an error's text without possible credentials, shortened for a message."""
    text = str(error)
    for secret, replacement in _SECRETS:
        text = secret.sub(replacement, text)
    return text if len(text) <= _MAX_LENGTH else text[:_MAX_LENGTH] + "…"


def is_code(error: ClientError, *codes: str) -> bool:
    """Return whether S3 answered with one of these codes (a HEAD response has only the status)."""
    return _code(error) in codes


def is_never_sent(error: Exception) -> bool:
    """Return whether an error shows that its request was not sent."""
    return isinstance(error, NO_CONNECTION) or _is_not_trusted(error)


def _is_not_trusted(error: Exception) -> bool:
    return isinstance(error, SSLError) and any(text in str(error) for text in _NOT_TRUSTED)


def is_outcome_unknown(status: int, code: str) -> bool:
    """Return whether a response leaves open whether the request was applied.

    botocore reports an error inside a 200 response as a 500, whatever its code: only a real 503 is a refusal.
    """
    return status >= 500 and status != 501 and not (status == 503 and code in _THROTTLED)


def _error_from_response(request: RequestInfo, error: ClientError) -> LockgateError:
    code, status = _code(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    text = error.response.get("Error", {}).get("Message", "no message")
    message = f"{request}: S3 answered {scrubbed(f'{code} ({text})')}"
    if is_outcome_unknown(status, code):
        return _unknown(request, message) if request.changes else _refusal(request, message, _LATER)
    if code in _CONCURRENT and request.operation == "CompleteMultipartUpload":
        # AWS ends the upload with this response; only the object shows whether the upload was completed.
        return _unknown(request, message)
    if status == 412:
        return _precondition(request, message)
    if status in {429, 503}:
        return _refusal(request, message, _LATER)
    found = _REFUSALS.get(code)
    if found is None and status in {400, 501} and _NAMES_CHECKSUM.search(text):
        found = _CHECKSUMS
    other = (NotAppliedError, "{effect}; correct what it names, then try again")
    by_status = "NoSuchUpload" if status == 404 and request.operation in _OF_AN_UPLOAD else str(status)
    return _refusal(request, message, found or _REFUSALS.get(by_status) or other)


def _refusal(request: RequestInfo, message: str, refusal: tuple[type[LockgateError], str]) -> LockgateError:
    kind, text = refusal
    permission = _PERMISSIONS.get(request.operation, f"s3:{request.operation}")
    return kind(message + text.format(bucket=request.bucket, effect=request.no_effect, permission=permission))


def _precondition(request: RequestInfo, message: str) -> LockgateError:
    if request.if_absent:
        return AlreadyExistsError(
            f"{message}: there is an object already; it was not changed; read it to find out whose it is"
        )
    return PreconditionFailedError(
        f"{message}: the object has another version; it was not changed; read it and decide again"
    )


def _error_from_transport(request: RequestInfo, error: Exception) -> LockgateError:
    message = f"{request}: {scrubbed(error)}"
    if isinstance(error, NO_CREDENTIALS):
        return AccessDeniedError(
            f"{message}{request.no_effect}; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if isinstance(error, InvalidRegionError):  # of a redirect, which S3 sends in place of applying a request
        return _refusal(request, message, _ELSEWHERE)
    if isinstance(error, ParamValidationError):
        return InvalidInputError(f"{message}{request.no_effect}")
    if is_never_sent(error):
        checked = "the endpoint (AWS_ENDPOINT_URL) and the network"
        if _is_not_trusted(error):
            checked = "the server's certificate, and that AWS_CA_BUNDLE has that of its authority"
        return StoreUnavailableError(f"{message}{request.no_effect}; check {checked}, then try again")
    if not request.changes:
        return StoreUnavailableError(f"{message}; try again later")
    return _unknown(request, message)


def _unknown(request: RequestInfo, message: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{message}; it may or may not have been applied; nothing was deleted; "
        f"let recovery read {request.url} back"
    )


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", "an error"))
