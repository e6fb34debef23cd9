"""Compile Spark's commit protocol into the jar of the package: `python -m scripts.commit_protocol_jar`.

The same sources give the same bytes with the same compiler. Of hadoop-aws only the signatures are needed,
which `jvm/compile_only` has.
"""

from __future__ import annotations

import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Final

import pyspark

from lockgate.storage_core.spark.pending_write import JAR

SOURCES: Final = Path(__file__).parents[1] / "jvm"
JAVA: Final = "17"
LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)


def build(jar: Path) -> None:
    """Compile the classes, and write them to a jar without any time or order of this machine.

    Raises:
        CalledProcessError: They do not compile with this Spark; the compiler's output is shown.
    """
    jars = Path(pyspark.__file__).parent / "jars"
    with tempfile.TemporaryDirectory() as folder:
        compiler = [
            "javac",
            "--release",
            JAVA,
            "-g:source,lines",
            "-Xlint:all,-processing,-classfile,-path",
            "-Werror",
        ]
        places = ["-cp", f"{jars}/*", "-sourcepath", str(SOURCES / "compile_only"), "-d", folder]
        sources = sorted(map(str, (SOURCES / "lockgate").glob("*.java")))
        subprocess.run([*compiler, *places, "-implicit:class", *sources], check=True)
        with zipfile.ZipFile(jar, "w") as packed:  # not compressed: that depends on the library
            for file in sorted(Path(folder, "lockgate").glob("*.class")):
                packed.writestr(zipfile.ZipInfo(f"lockgate/{file.name}", LONG_AGO), file.read_bytes())


if __name__ == "__main__":
    build(JAR)
