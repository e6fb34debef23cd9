"""Tests of the installed wheel beside an Airflow project whose packages are named like Lockgate's folders."""

from __future__ import annotations

import json
import sqlite3
import stat
import subprocess
import tarfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.flights.processes.airflow_home import AirflowHome
from examples.flights.processes.children import ended
from tests.support.airflow.home import create
from tests.support.soak import soak_only
from tests.support.wheel import ROOT, TIMEOUT_S, CleanEnvironment, build, clean_environment

pytestmark = pytest.mark.integration

OURS = {
    "blob_sweep",
    "dataset_commit",
    "job_recovery",
    "journal_checkpoint",
    "lease_recovery",
    "retention",
    "turn_revert",
    "upload_sweep",
    "volume_upkeep",
}

PROJECT = {
    "operators/greet.py": """\
from airflow.sdk import BaseOperator

class GreetOperator(BaseOperator):
    def execute(self, context):
        return "hello"

def greetings(spark):
    return spark.sql("select 'hello' as greeting")
""",
    "workers/pools.py": 'POOL = "default_pool"\n',
    "plugins/opening.py": "OPENS_AT = 9\n",
}
"""Modules of a project that was there before Lockgate, by their paths."""

GREET_DAG = """\
from airflow.sdk import DAG
from operators.greet import GreetOperator
from plugins.opening import OPENS_AT
from workers.pools import POOL

with DAG("greet", schedule=f"0 {OPENS_AT} * * *") as dag:
    GreetOperator(task_id="greet", pool=POOL)
"""

STAGE = """\
import json, logging, sys
from lockgate.operators.spark_process.process import SparkChild, SparkWork

work = SparkWork(
    run="lockgate.operators.spark_process.frames:write_frame",
    arguments={
        "python_callable": "operators.greet:greetings",
        "op_kwargs": {},
        "staging": sys.argv[1],
        "format": "json",
        "partition_by": [],
        "options": {},
    },
    master="local[1]",
)
logging.basicConfig(level=logging.INFO)
print(json.dumps(SparkChild(logging.getLogger()).run(work)))
"""


@dataclass(frozen=True)
class Layout:
    """The layout of a project and the way Airflow is started in it.

    Attributes:
        packages: Path of its packages below its root.
        variables: Environment variables of Airflow, each with a folder below the root.
        cwd: Working directory of Airflow, below the folder that contains the root.
        has_init_files: Whether its packages have `__init__.py`.
    """

    packages: str
    variables: dict[str, str]
    cwd: str = "elsewhere"
    has_init_files: bool = True


LAYOUTS = {
    "dags folder": Layout("dags", {}),
    "plugins folder": Layout("plugins", {"AIRFLOW__CORE__PLUGINS_FOLDER": "plugins"}),
    "root on PYTHONPATH": Layout(".", {"PYTHONPATH": "."}),
    "root on PYTHONPATH, no __init__.py": Layout(".", {"PYTHONPATH": "."}, has_init_files=False),
    "root as working directory": Layout(".", {}, cwd="project"),
}
OFTEN = "dags folder"
"""The layout that `make test` tries, too."""


@dataclass(frozen=True)
class Project:
    """A project on disk, and the environment that runs it.

    Attributes:
        environment: Environment with the wheel installed.
        root: Root folder of the project.
        cwd: Working directory of its processes.
        packages: Folder of its packages.
        variables: Environment variables of its processes.
    """

    environment: CleanEnvironment
    root: Path
    cwd: Path
    packages: Path
    variables: dict[str, str]

    def run(self, *arguments: str, **own: str) -> subprocess.CompletedProcess[str]:
        """Run the interpreter or the command `lockgate`."""
        return self.environment.run(*arguments, cwd=self.cwd, own={**self.variables, **own})

    def loaded(self, **own: str) -> dict[str, str]:
        """Load all DAG files in Airflow; return file names by DAG.

        Raises:
            AssertionError: A file could not be imported.
        """
        done = self.run("-m", "airflow", "dags", "reserialize", **own)
        with closing(sqlite3.connect(Path(self.variables["AIRFLOW_HOME"], "airflow.db"))) as database:
            errors = database.execute("select filename, stacktrace from import_error").fetchall()
            dags = database.execute("select dag_id, relative_fileloc from dag").fetchall()
        assert (done.returncode, errors) == (0, []), done.stdout + done.stderr
        return dict(dags)

    def start_spark_child(self) -> str:
        """Start the program of the Spark child without work; return the error that it reports."""
        answer = self.root / "answer.json"
        # Operators pass on all of `sys.path`, in which the project's packages may come first.
        done = self.run(
            "-m", "lockgate.operators.spark_process.child", str(answer), PYTHONPATH=str(self.packages)
        )
        assert answer.exists(), done.stdout + done.stderr
        return str(json.loads(answer.read_text())["type"])

    def start_worker(self) -> str:
        """Start a Celery worker, stop it when it is ready, and return its output."""
        log = self.root / "worker.log"
        command = [
            *(self.environment.python, "-m", "celery", "-A", "lockgate.workers", "worker"),
            *("--pool", "solo", "--queues", "commit,recovery,sweep", "--loglevel", "INFO"),
        ]
        with (
            log.open("wb") as output,
            subprocess.Popen(
                command,
                cwd=self.cwd,
                env=self.environment.variables(**self.variables, LOCKGATE_BROKER_URL="memory://"),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as worker,
            ended(worker),
        ):
            until = time.monotonic() + TIMEOUT_S
            while " ready." not in log.read_text():
                assert worker.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.1)
        return log.read_text()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of the checkout."""
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    """Yield a clean environment with the wheel."""
    return clean_environment(tmp_path_factory.mktemp("clean") / "venv", wheel)


@pytest.fixture
def project(request: pytest.FixtureRequest, environment: CleanEnvironment, tmp_path: Path) -> Project:
    """Return a project in the layout named by the test's parameter."""
    layout = LAYOUTS[request.param]
    root = tmp_path / "project"
    packages = root / layout.packages
    for name, source in PROJECT.items():
        module = packages / name
        module.parent.mkdir(parents=True)
        module.write_text(source)
        if layout.has_init_files:
            module.with_name("__init__.py").touch()
    dags = root / "dags"
    dags.mkdir(exist_ok=True)
    (dags / "greet_dag.py").write_text(GREET_DAG)
    cwd = tmp_path / layout.cwd
    cwd.mkdir(exist_ok=True)
    home = tmp_path / "airflow"
    create(AirflowHome(home))
    variables = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "LOCKGATE_HOME": str(tmp_path / "lockgate"),
        **{name: str(root / folder) for name, folder in layout.variables.items()},
    }
    return Project(environment, root, cwd, packages, variables)


def test_a_wheel_contains_plain_files_of_one_package_and_its_requirements(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = {member.filename: member for member in archive.infolist()}
        [metadata] = [archive.read(name).decode() for name in members if name.endswith(".dist-info/METADATA")]

    tops = {name.partition("/")[0] for name in members}
    assert tops == {"lockgate", f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"}
    assert not [name for name, member in members.items() if stat.S_ISLNK(member.external_attr >> 16)]
    folders = {part for name in members for part in Path(name).parent.parts}
    assert not folders & {"tests", "examples", "benchmarks", "scripts", "__pycache__"}
    ours = [name for name in members if name.startswith("lockgate/")]
    others = {name for name in ours if Path(name).suffix not in {".py", ".typed"}}
    web = [*(ROOT / "plugins").rglob("templates/*"), *(ROOT / "plugins").rglob("static/*")]
    jar = ROOT / "storage_core/spark/pending_files.jar"
    assert others == {str(Path("lockgate", file.relative_to(ROOT))) for file in [*web, jar]}
    assert members.keys() >= {
        "lockgate/py.typed",
        "lockgate/plugins/airflow_plugin.py",
        *(f"lockgate/dags/{dag}.py" for dag in OURS),
        *(
            str(Path("lockgate", migration.relative_to(ROOT)))
            for migration in (ROOT / "storage_core/journal/database/migrations").rglob("*.py")
        ),
    }
    assert "\nClassifier: Framework :: Apache Airflow :: Provider\n" in metadata


@pytest.mark.soak
def test_a_wheel_built_from_the_sdist_equals_the_wheel_of_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(build("sdist", ROOT, tmp_path)) as archive:
        assert not [member.name for member in archive if member.issym() or member.islnk()]
        subprocess.run(["tar", "-xf", archive.name, "-C", tmp_path], check=True)
    [source] = [path for path in tmp_path.iterdir() if path.is_dir()]

    again = build("wheel", source, tmp_path / "again")

    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())
        assert [name for name in one.namelist() if one.read(name) != other.read(name)] == []
    assert wheel.name == again.name


def test_only_lockgate_can_be_imported_from_the_wheel(environment: CleanEnvironment, tmp_path: Path) -> None:
    found = environment.run(
        "-c",
        "import importlib.util as u, sys, lockgate; print(lockgate.__file__)\n"
        "print([name for name in sys.argv[1:] if u.find_spec(name)])",
        *("storage_core", "operators", "workers", "dags", "plugins"),
        cwd=tmp_path,
        own={},
    )

    place = environment.site_packages / "lockgate" / "__init__.py"
    assert found.stdout.splitlines() == [str(place), "[]"], found.stderr


@pytest.mark.parametrize(
    "project", [name if name == OFTEN else soak_only(name) for name in LAYOUTS], indirect=True
)
def test_a_project_and_lockgate_load_side_by_side(project: Project) -> None:
    dags = project.root / "dags"
    installed = project.run("lockgate", "dags", "install", str(dags))
    assert installed.returncode == 0, installed.stdout + installed.stderr

    with ThreadPoolExecutor() as pool:
        loaded = pool.submit(project.loaded)
        spark_child = pool.submit(project.start_spark_child)
        worker = pool.submit(project.start_worker)

    assert loaded.result() == {"greet": "greet_dag.py", **{dag: f"lockgate_{dag}.py" for dag in OURS}}
    assert spark_child.result() == "EOFError"  # it requested work and there was none
    assert "lockgate.commit_task" in worker.result()


@pytest.mark.parametrize("project", ["root on PYTHONPATH"], indirect=True)
@pytest.mark.soak
def test_the_folder_of_the_dags_is_a_bundle_beside_the_projects_bundle(project: Project) -> None:
    ours = project.run("lockgate", "dags", "path").stdout.strip()
    assert ours == str(project.environment.site_packages / "lockgate" / "dags")
    bundles = [
        {
            "name": name,
            "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
            "kwargs": {"path": path},
        }
        for name, path in [("project", str(project.root / "dags")), ("lockgate", ours)]
    ]

    loaded = project.loaded(AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST=json.dumps(bundles))

    assert loaded == {"greet": "greet_dag.py", **{dag: f"{dag}.py" for dag in OURS}}


@pytest.mark.parametrize("project", ["root as working directory"], indirect=True)
@pytest.mark.soak
def test_airflow_lists_the_provider_and_the_plugin_without_a_warning(project: Project) -> None:
    with ThreadPoolExecutor() as pool:
        provider = pool.submit(project.run, "-m", "airflow", "providers", "list", "--output", "json")
        plugin = pool.submit(project.run, "-m", "airflow", "plugins", "--output", "json")

    # Airflow would print its log lines beside the JSON.
    [listed] = [
        found for found in json.loads(provider.result().stdout) if found["package_name"] == "lockgate"
    ]
    assert listed["description"].startswith("Job output that appears all at once")
    [loaded] = [found for found in json.loads(plugin.result().stdout) if found["name"] == "lockgate"]
    assert "lockgate.plugins.airflow_plugin:LockgatePlugin" in loaded["source"]
    assert (provider.result().stderr, plugin.result().stderr) == ("", "")


@pytest.mark.parametrize("project", ["root on PYTHONPATH"], indirect=True)
@pytest.mark.soak
def test_the_spark_child_calls_a_function_of_the_projects_operators(project: Project) -> None:
    done = project.run("-c", STAGE, str(project.root / "staging"))

    assert done.returncode == 0, done.stdout + done.stderr
    staged = json.loads(done.stdout)
    assert [Path(project.root, "staging", path).read_text() for path, *_ in staged] == [
        '{"greeting":"hello"}\n'
    ]
