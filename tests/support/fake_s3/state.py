"""The contents of a bucket: immutable values in three tables, so that a snapshot is three shallow copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Attributes:
    """Attributes that are set when the write of an object begins and never change."""

    metadata: Mapping[str, str]
    content_type: str
    storage_class: str
    encryption: Mapping[str, str]


@dataclass(frozen=True)
class Checksum:
    """A CRC-32 in base64, of the whole object or, of an upload, of its parts' checksums."""

    value: str
    kind: str


@dataclass(frozen=True)
class StoredObject:
    """One object. Without a body, its bytes were only counted."""

    size: int
    etag: str
    modified_s: float
    body: bytes | None
    attributes: Attributes
    checksum: Checksum | None


@dataclass(frozen=True)
class StoredPart:
    """One part of an open upload."""

    size: int
    etag: str
    checksum: str | None
    body: bytes | None


@dataclass(frozen=True)
class Upload:
    """One open upload; `checksummed` where it was begun with a checksum algorithm."""

    key: str
    upload_id: str
    begun_s: float
    attributes: Attributes
    checksummed: bool
    parts: Mapping[int, StoredPart] = field(default_factory=dict)


@dataclass(frozen=True)
class Completion:
    """The result of a completed upload, kept for a repeated completion."""

    key: str
    made: StoredObject


@dataclass
class State:
    """The state of a bucket. Two are equal if no client could ever distinguish them."""

    objects: dict[str, StoredObject] = field(default_factory=dict)
    uploads: dict[str, Upload] = field(default_factory=dict)
    completed: dict[str, Completion] = field(default_factory=dict)

    def copy(self) -> State:
        return State(dict(self.objects), dict(self.uploads), dict(self.completed))
