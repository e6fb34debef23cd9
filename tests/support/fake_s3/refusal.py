"""An error response of S3: a status, a code, and a message."""

from __future__ import annotations


class Refusal(Exception):  # noqa: N818 - it is S3's answer, and no error of the fake
    """Raised by an operation instead of answering; the server makes S3's error document of it."""

    def __init__(self, status: int, code: str, message: str = "") -> None:
        super().__init__(f"{status} {code} {message}")
        self.status = status
        self.code = code
        self.message = message or code


def no_such_key(key: str) -> Refusal:
    return Refusal(404, "NoSuchKey", f"The specified key does not exist: {key}")


def no_such_upload() -> Refusal:
    return Refusal(
        404, "NoSuchUpload", "The specified upload does not exist. It may have been aborted or completed."
    )


def precondition_failed() -> Refusal:
    return Refusal(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")


def unknown(what: str) -> Refusal:
    """Return the refusal of anything that the fake does not implement."""
    return Refusal(501, "NotImplemented", f"the fake S3 does not know {what}")
