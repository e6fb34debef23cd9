"""A store wrapper that counts calls and passes a failpoint before and after each.

The failpoints are `<step>.<verb>.before` and `.after`: the step is set by `failpoints.step`, the verb is one
of `VERBS`. Each page of a listing is one call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from lockgate.storage_core.failpoints import FAILPOINTS, current_step
from lockgate.storage_core.ids import Token
from lockgate.storage_core.stores.file_tree import FileTree, Obstacle
from lockgate.storage_core.stores.protocol import (
    PAGE,
    Capabilities,
    CompletionSender,
    DeleteFailure,
    ObjectInfo,
    Part,
    PendingUpload,
    Store,
    UploadInfo,
)

Result = TypeVar("Result")
Item = TypeVar("Item")

VERBS: Final = (
    "put",
    "create",
    "get",
    "head",
    "list",
    "delete",
    "delete_many",
    "begin",
    "part",
    "copy",
    "seal",
    "complete",
    "abort",
    "holds",
    "measure",
    "uploads",
    "adopt",
    "obstacles",
)
"""Names of the store's methods in failpoints and counts."""


class InstrumentedStore:
    """A `Store` that wraps another. What replaces `complete_upload` must replace `completion_sender`, too.

    Attributes:
        inner: The wrapped store.
        requests: Number of calls so far, by verb.
    """

    def __init__(self, inner: Store, requests: Counter[str] | None = None) -> None:
        self.inner = inner
        self.requests = Counter[str]() if requests is None else requests

    @property
    def url(self) -> str:
        """See `Store.url`."""
        return self.inner.url

    @property
    def capabilities(self) -> Capabilities:
        """See `Store.capabilities`."""
        return self.inner.capabilities

    def put(self, key: str, data: bytes, *, if_version: str | None = None) -> ObjectInfo:
        """See `Store.put`."""
        return self._call("put", lambda: self.inner.put(key, data, if_version=if_version))

    def create(self, key: str, data: bytes) -> ObjectInfo:
        """See `Store.create`."""
        return self._call("create", lambda: self.inner.create(key, data))

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """See `Store.get`."""
        return self._call("get", lambda: self.inner.get(key, start=start, length=length))

    def head(self, key: str) -> ObjectInfo:
        """See `Store.head`."""
        return self._call("head", lambda: self.inner.head(key))

    def pages(
        self, prefix: str = "", *, after: str = "", page_size: int = PAGE
    ) -> Iterator[Sequence[ObjectInfo]]:
        """See `Store.pages`."""
        return self._each_page("list", self.inner.pages(prefix, after=after, page_size=page_size))

    def delete(self, key: str, *, if_version: str | None = None) -> None:
        """See `Store.delete`."""
        self._call("delete", lambda: self.inner.delete(key, if_version=if_version))

    def delete_many(self, keys: Sequence[str]) -> list[DeleteFailure]:
        """See `Store.delete_many`."""
        return self._call("delete_many", lambda: self.inner.delete_many(keys))

    def begin_upload(
        self,
        key: str,
        token: Token,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        copy_of: str | None = None,
    ) -> str:
        """See `Store.begin_upload`."""
        return self._call(
            "begin",
            lambda: self.inner.begin_upload(
                key, token, content_type=content_type, metadata=metadata, copy_of=copy_of
            ),
        )

    def put_part(self, key: str, upload_id: str, number: int, offset: int, data: bytes) -> Part:
        """See `Store.put_part`."""
        return self._call("part", lambda: self.inner.put_part(key, upload_id, number, offset, data))

    def copy_part(
        self, key: str, upload_id: str, number: int, offset: int, *, source: str, start: int, length: int
    ) -> Part:
        """See `Store.copy_part`."""
        return self._call(
            "copy",
            lambda: self.inner.copy_part(
                key, upload_id, number, offset, source=source, start=start, length=length
            ),
        )

    def seal_upload(self, key: str, upload_id: str, token: Token, parts: Sequence[Part]) -> PendingUpload:
        """See `Store.seal_upload`."""
        return self._call("seal", lambda: self.inner.seal_upload(key, upload_id, token, parts))

    def complete_upload(self, pending: PendingUpload, *, if_absent: bool = False) -> ObjectInfo:
        """See `Store.complete_upload`."""
        return self._call("complete", lambda: self.inner.complete_upload(pending, if_absent=if_absent))

    def completion_sender(self) -> CompletionSender | None:
        """See `Store.completion_sender`."""
        inner = self.inner.completion_sender()
        if inner is None:
            return None
        begin = inner.send

        def send(
            pending: PendingUpload, *, if_absent: bool, arrived: Callable[[], None]
        ) -> Callable[[], ObjectInfo]:
            point = f"{current_step()}.complete"
            self.requests["complete"] += 1
            FAILPOINTS.hit(f"{point}.before")
            answer = begin(pending, if_absent=if_absent, arrived=arrived)

            def completed() -> ObjectInfo:
                info = answer()
                FAILPOINTS.hit(f"{point}.after")
                return info

            return completed

        return CompletionSender(send, inner.patience_s)

    def abort_upload(self, key: str, upload_id: str) -> None:
        """See `Store.abort_upload`."""
        self._call("abort", lambda: self.inner.abort_upload(key, upload_id))

    def holds(self, pending: PendingUpload) -> bool:
        """See `Store.holds`."""
        return self._call("holds", lambda: self.inner.holds(pending))

    def upload_bytes(self, key: str, upload_id: str) -> int:
        """See `Store.upload_bytes`."""
        return self._call("measure", lambda: self.inner.upload_bytes(key, upload_id))

    def upload_pages(
        self, prefix: str = "", *, after: str = "", page_size: int = PAGE
    ) -> Iterator[Sequence[UploadInfo]]:
        """See `Store.upload_pages`."""
        return self._each_page("uploads", self.inner.upload_pages(prefix, after=after, page_size=page_size))

    def _call(self, verb: str, call: Callable[[], Result]) -> Result:
        point = f"{current_step()}.{verb}"
        self.requests[verb] += 1
        FAILPOINTS.hit(f"{point}.before")
        result = call()
        FAILPOINTS.hit(f"{point}.after")
        return result

    def _each_page(self, verb: str, pages: Iterator[Sequence[Item]]) -> Iterator[Sequence[Item]]:
        while True:
            page = self._call(verb, lambda: next(pages, None))
            if page is None:
                return
            yield page


class InstrumentedFileTree(InstrumentedStore):
    """An `InstrumentedStore` for a store that is a `FileTree`."""

    def __init__(self, inner: Store, tree: FileTree, requests: Counter[str] | None = None) -> None:
        super().__init__(inner, requests)
        self._tree = tree

    def adopt_file(self, local: Path, key: str, token: Token) -> PendingUpload:
        """See `FileTree.adopt_file`."""
        return self._call("adopt", lambda: self._tree.adopt_file(local, key, token))

    def present(self, folder: str, names: Sequence[str]) -> list[str]:
        """See `FileTree.present`; counted as a listing, in whose place it is."""
        return self._call("list", lambda: self._tree.present(folder, names))

    def obstacles(self, keys: Sequence[str]) -> list[Obstacle]:
        """See `FileTree.obstacles`."""
        return self._call("obstacles", lambda: self._tree.obstacles(keys))


def instrument(store: Store, requests: Counter[str] | None = None) -> InstrumentedStore:
    """Wrap a store; a `FileTree` stays one.

    Args:
        store: Store to wrap.
        requests: Counter to continue; a new one by default.
    """
    if isinstance(store, FileTree):
        return InstrumentedFileTree(store, store, requests)
    return InstrumentedStore(store, requests)
