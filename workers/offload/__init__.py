"""Large arguments and results of Celery tasks as blobs (pattern: Claim Check): `install_offload(app)`."""

from __future__ import annotations

from lockgate.workers.offload.install import install_offload

__all__ = ["install_offload"]
