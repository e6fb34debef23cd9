"""The family `blobs`: blobs, references, upload sets and jobs."""

from __future__ import annotations

from typing import Final

from lockgate.storage_core.blobs.registry.blob_rows import Blob, BlobJob, Reference, UploadSet
from lockgate.storage_core.blobs.registry.references import (
    DropReference,
    FailBlobJob,
    FinishBlobJob,
    LapseReference,
    SubmitBlobJob,
    TakeReference,
    artefacts_touched,
    end_blobs,
    submitted_with,
    take_artefacts,
)
from lockgate.storage_core.blobs.registry.removals import (
    AdoptBlob,
    ForgetBlob,
    ForgetBlobJob,
    MarkDeleting,
    RestageBlob,
)
from lockgate.storage_core.blobs.registry.upload_sets import (
    AbandonUpload,
    BeginUpload,
    CompleteUpload,
    PutBlob,
    StageUploaded,
)
from lockgate.storage_core.journal.entries.family import Family, Reaction
from lockgate.storage_core.journal.entries.op import ArtefactsTaken, ResourceEnded

BLOBS: Final = Family(
    name="blobs",
    version=1,
    rows=(Blob, Reference, UploadSet, BlobJob),
    ops=(
        BeginUpload,
        PutBlob,
        StageUploaded,
        CompleteUpload,
        AbandonUpload,
        SubmitBlobJob,
        TakeReference,
        DropReference,
        LapseReference,
        FailBlobJob,
        FinishBlobJob,
        AdoptBlob,
        MarkDeleting,
        RestageBlob,
        ForgetBlob,
        ForgetBlobJob,
    ),
    reactions=(
        Reaction(event=ArtefactsTaken, fold=take_artefacts, touches=artefacts_touched),
        Reaction(event=ResourceEnded, fold=end_blobs, spans=submitted_with),
    ),
    rearm="lockgate.storage_core.blobs.registry.queries:restaged",
    release="lockgate.storage_core.blobs.registry.queries:releases",
)
