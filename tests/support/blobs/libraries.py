"""Libraries as a user builds them: modules, wheels, zips and jars, uploaded for a job."""

from __future__ import annotations

import io
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

from lockgate.storage_core.blobs.blob_protocol import ArtefactFile, Artefacts, Blobs


def archive(members: Mapping[str, str | bytes], *, is_packed: bool = False) -> bytes:
    """Return a zip file."""
    buffer = io.BytesIO()
    with ZipFile(buffer, "w", ZIP_DEFLATED if is_packed else ZIP_STORED) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return buffer.getvalue()


def wheel(package: str, code: str, *, version: str = "1.0", **members: str | bytes) -> bytes:
    """Return a pure wheel of one package, as `pip wheel` builds it."""
    info = f"{package}-{version}.dist-info"
    return archive(
        {
            f"{package}/__init__.py": code,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            **members,
        }
    )


def native_wheel(package: str) -> bytes:
    """Return a wheel of a package with a compiled module, copied from the installed MarkupSafe."""
    spec = find_spec("markupsafe._speedups")
    assert spec is not None
    assert spec.origin is not None
    compiled = Path(spec.origin)
    code = "from ._speedups import _escape_inner as escape"
    return wheel(package, code, **{f"{package}/{compiled.name}": compiled.read_bytes()})


def jar(folder: Path) -> bytes:
    """Compile a class of Spark's `UDF1` that adds one, and return it as a jar."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    folder.mkdir()
    source = folder / "PlusOne.java"
    source.write_text(
        "package lockgate.test;\n"
        "public class PlusOne implements org.apache.spark.sql.api.java.UDF1<Long, Long> {\n"
        "  public Long call(Long x) { return x + 1; }\n"
        "}\n"
    )
    jars = Path(spec.origin).parent / "jars" / "*"
    subprocess.run(
        ["javac", "-cp", str(jars), "-proc:none", "-d", str(folder / "classes"), str(source)],
        check=True,
        timeout=120,
    )
    made = folder / "made.jar"
    subprocess.run(["jar", "cf", str(made), "-C", str(folder / "classes"), "."], check=True, timeout=120)
    return made.read_bytes()


def has_jdk() -> bool:
    return shutil.which("javac") is not None and shutil.which("jar") is not None


def upload(blobs: Blobs, job_id: str, files: Mapping[str, bytes]) -> Artefacts:
    """Upload libraries as one set and submit their job."""
    upload_set = blobs.begin_set(job_id)
    put = [
        ArtefactFile(
            name=name,
            blob_key=blobs.put(data, job_id=job_id, use="library", name=name, upload_set=upload_set).blob_key,
        )
        for name, data in files.items()
    ]
    blobs.complete_set(upload_set)
    artefacts = Artefacts(job_id=job_id, blobs=tuple(put))
    blobs.submit(job_id, artefacts.blob_keys)
    return artefacts
