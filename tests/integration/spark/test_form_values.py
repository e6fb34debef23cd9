"""Tests of the main job's form: sources, options and expressions read what the lists allow, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lockgate.operators.spark_process.frames import chosen, read_files
from lockgate.operators.trigger_rights import AllowLists
from lockgate.storage_core.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.integration

SECRET = "the password of the broker"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKGATE_TEST_SECRET", SECRET)


@pytest.fixture
def form(spark: SparkSession, tmp_path: Path) -> Iterator[Form]:
    """Yield a form whose sources lie in one folder, beside a file that it may not read."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "orders.json").write_text('{"id": 1, "user": {"name": "ann"}, "tags": ["a", "b"], "_x": "5"}\n')
    (tmp_path / "passwords").write_text(SECRET + "\n")
    set_before = spark.conf.get("spark.sql.variable.substitute")
    yield Form(spark, folder)
    spark.conf.set("spark.sql.variable.substitute", str(set_before))


class Form:
    """Reads the orders as the task of a restricted DAG does."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self.folder = folder
        self.allowed = AllowLists(sources=(str(folder),), transforms=("tests.*:*",))

    def read(self) -> DataFrame:
        """Return the orders."""
        return self._spark.read.json(str(self.folder / "orders.json"))

    def rows(self, **given: Any) -> list[dict[str, Any]]:
        arguments = {"source": str(self.folder / "orders.json"), "source_format": "json", **given}
        frame = read_files(self._spark, **arguments, allowed=self.allowed)
        return [row.asDict(recursive=True) for row in frame.collect()]


COMPUTED = [
    ("id + 1 as n", 2),
    ("-id * 2 % 3 as n", -2),
    ("cast(id as string) || '-' || _x as n", "1-5"),
    ("try_cast(_x as int) as n", 5),
    ("_x::int as n", 5),
    ("user.name as n", "ann"),
    ("tags[1] as n", "b"),
    ("size(filter(tags, tag -> tag <> 'a')) as n", 1),
    ("aggregate(tags, '', (all, tag) -> concat(all, tag)) as n", "ab"),
    ("exists(tags, tag -> tag rlike '^b$') as n", True),
    ("case when id in (1, 2) then 'low' when id between 3 and 9 then 'mid' else 'high' end as n", "low"),
    ("case id when 1 then 'one' end as n", "one"),
    ("nvl(nullif(id, 1), 7) as n", 7),
    ("if(id is not null and not id is null, 'yes', 'no') as n", "yes"),
    ("_x like any ('5%', 'y') or _x not like all ('x', 'y') as n", True),
    ("id <=> null as n", False),
    ("id is distinct from 2 as n", True),
    ("trim(both '5' from concat('5', user.name, '5')) as n", "ann"),
    ("substring(user.name from 1 for 2) as n", "an"),
    ("position('n' in user.name) as n", 2),
    ("overlay(user.name placing 'xx' from 2) as n", "axx"),
    ("extract(year from date '2020-02-01') as n", 2020),
    ("year(date_add(to_date('2020-12-31'), 1)) as n", 2021),
    ("current_date is not null and current_timestamp() is not null as n", True),
    ("datediff(DAY, date '2020-01-01', date '2020-01-03') as n", 2),
    ("timestampadd(DAY, 1, timestamp '2020-01-01 00:00:00') > timestamp '2020-01-01' as n", True),
    ("date '2020-01-01' + interval 1 day > date '2020-01-01' as n", True),
    ("extract(month from make_interval(0, 3)) as n", 3),
    ("mask(_x, digitChar => 'd') as n", "d"),
    ("sha2(_x, 256) is not null as n", True),
    ("get_json_object('{\"a\": 1}', '$.a') as n", "1"),
    ("from_json('{\"a\": 1}', 'a int').a as n", 1),
    ("to_json(struct(id, _x as y)) as n", '{"id":1,"y":"5"}'),
    ("named_struct('a', id).a as n", 1),
    ("explode(array(9)) as n", 9),
    ("element_at(map('k', 3), 'k') as n", 3),
    ("row_number() over (partition by id order by _x desc nulls last) as n", 1),
    ("sum(id) over (order by id rows between unbounded preceding and current row) as n", 1),
    ("_x collate UTF8_LCASE = '5' as n", True),
    ("parse_url('http://h/p?q=1', 'QUERY', 'q') as n", "1"),
    ("length(uuid()) as n", 36),
    ("'${env:LOCKGATE_TEST_SECRET}' as n", "${env:LOCKGATE_TEST_SECRET}"),
    ("'${system:user.dir}${spark:spark.app.name}' as n", "${system:user.dir}${spark:spark.app.name}"),
]

AGGREGATES = [
    "count(distinct id) filter (where id > 0) as n",
    "percentile_cont(0.5) within group (order by id) as n",
    "first(id ignore nulls) as n",
]


def test_expressions_of_columns_are_computed(form: Form) -> None:
    read = form.read()

    row = chosen(read, [text for text, _ in COMPUTED], None, is_form=True).first()

    assert row is not None
    assert dict(zip([text for text, _ in COMPUTED], row, strict=True)) == dict(COMPUTED)
    for text in AGGREGATES:
        assert chosen(read, [text], None, is_form=True).columns == ["n"]


def test_all_columns_and_a_condition_are_chosen(form: Form) -> None:
    assert form.rows(columns=["*", "id as n"], where="user.name = 'ann' and id > 0")[0]["n"] == 1
    assert form.rows(where="not (id > 0)") == []
    assert form.rows(columns=["inline(array(struct(id, _x))) as (a, b)"]) == [{"a": 1, "b": "5"}]


REFUSED = [
    "reflect('java.lang.System', 'getenv', 'LOCKGATE_TEST_SECRET')",
    "java_method('java.lang.System', 'getenv', 'LOCKGATE_TEST_SECRET')",
    "try_reflect('java.lang.System', 'getenv', 'LOCKGATE_TEST_SECRET')",
    "ReFlect('java.lang.System', 'getenv', 'LOCKGATE_TEST_SECRET')",
    "`reflect`('java.lang.System', 'getenv', 'LOCKGATE_TEST_SECRET')",
    "reflect /* */ ('java.lang.System', 'getenv', 'LOCKGATE_TEST_SECRET')",
    "system.builtin.reflect('java.lang.System', 'getenv', 'LOCKGATE_TEST_SECRET')",
    "builtin.reflect('java.lang.System', 'getenv', 'LOCKGATE_TEST_SECRET')",
    "identifier('re' || 'flect')('java.lang.System', 'getenv', 'LOCKGATE_TEST_SECRET')",
    "transform(tags, tag -> reflect('java.lang.System', 'getenv', tag))",
    "from_json(_x, reflect('java.lang.System', 'getenv', 'LOCKGATE_TEST_SECRET'))",
    "coalesce(null, case when true then reflect('java.lang.System', 'getenv', 'X') end)",
    "sum(id) over (partition by reflect('java.lang.System', 'getenv', 'X'))",
    "count(id) filter (where reflect('java.lang.System', 'getenv', 'X') is null)",
    "percentile_cont(0.5) within group (order by reflect('java.lang.System', 'getenv', 'X'))",
    "make_interval(years => reflect('java.lang.System', 'getenv', 'X'))",
    "(select reflect('java.lang.System', 'getenv', 'X'))",
    "(select max(value) from text.`/etc/passwd`)",
    "(select max(_c0) from csv.`/etc/passwd`)",
    "(select max(value) from range(3))",
    "exists (select 1 from csv.`/etc/passwd`)",
    "_x in (select _c0 from csv.`/etc/passwd`)",
    "_x not in (select value from text.`/etc/passwd`)",
    "(id, _x) in (select 1, value from text.`/etc/passwd`)",
    "transform(tags, tag -> (select max(value) from text.`/etc/passwd`))",
    "input_file_name()",
    "input_file_block_start()",
    "input_file_block_length()",
    "_metadata.file_path",
    "_METADATA.file_name",
    "current_user",
    "current_user()",
    "session_user",
    "current_catalog()",
    "current_database()",
    "version()",
    "read_files('/etc/passwd')",
    "lockgate_udf(id)",
    "java_udf(id)",
    "spark_catalog.default.f(id)",
    "from_xml(_x, 'a int', map('rowValidationXSDPath', '/etc/passwd'))",
    "xpath_string('<a/>', 'a')",
    "from_avro(_x, '{}', map('avroSchemaUrl', 'file:///etc/passwd'))",
    "from_protobuf(_x, 'M', '/etc/passwd')",
    "python_worker_logs()",
    ":name",
    "?",
    "session.secret",
    "secret",
]


@pytest.mark.parametrize("field", ["columns", "where"])
def test_expressions_that_read_something_else_are_refused(
    form: Form, spark: SparkSession, field: str
) -> None:
    spark.udf.register("lockgate_udf", lambda number: SECRET)
    spark.sql(f"declare or replace variable secret string default '{SECRET}'")
    read, messages = form.read(), {}

    for text in REFUSED:
        columns = [f"{text} as n"] if field == "columns" else None
        where = f"({text}) = 'x'" if field == "where" else None
        try:
            chosen(read, columns, where, is_form=True)
        except InvalidInputError as error:
            messages[text] = str(error)

    assert [text for text in REFUSED if text not in messages] == []
    assert [text for text, message in messages.items() if SECRET in message or "\n" in message] == []


def test_a_refused_expression_is_named_with_its_function_and_the_remedy(form: Form) -> None:
    with pytest.raises(InvalidInputError) as refused:
        form.rows(where="reflect('java.lang.System', 'exit', 1)")

    assert str(refused.value) == (
        "expression \"reflect('java.lang.System', 'exit', 1)\": reflect is not allowed in a form; nothing "
        "was computed; use functions of columns, or write a transformation, which "
        "LOCKGATE_TRIGGER_TRANSFORMS can allow"
    )


def test_a_column_may_have_the_name_of_a_refused_word(form: Form) -> None:
    (form.folder / "orders.json").write_text('{"_metadata": {"file_path": "p"}, "current_user": "ann"}\n')

    assert form.rows(columns=["_metadata.file_path as path", "current_user as n"]) == [
        {"path": "p", "n": "ann"}
    ]


def test_sources_below_an_allowed_folder_are_read(form: Form) -> None:
    folder = form.folder
    sources = [
        *(f"{folder}", f"{folder}/", f"file://{folder}/orders.json", f"file:{folder}/orders.json"),
        *(f"{folder}/*.json", f"{folder}/../in/orders.json", f"{folder}/ord[e]rs.*", f"FILE://{folder}/o*"),
    ]

    assert [form.rows(source=source, columns=["id"]) for source in sources] == [[{"id": 1}]] * len(sources)


def test_a_source_with_spaces_and_percent_signs_is_read(form: Form) -> None:
    file = form.folder / "day=2020-01-01 10%3A00" / "orders of ann.json"
    file.parent.mkdir()
    file.write_text('{"id": 2}\n')

    assert form.rows(source=str(file), columns=["id"]) == [{"id": 2}]


def test_a_link_below_an_allowed_folder_to_a_file_outside_is_refused(form: Form) -> None:
    link = form.folder / "links" / "folder" / "link"
    link.parent.mkdir(parents=True)
    link.symlink_to(form.folder.parent / "passwords")

    for source in (link, form.folder / "links", f"{form.folder}/links/*"):
        with pytest.raises(InvalidInputError, match="LOCKGATE_TRIGGER_SOURCES"):
            form.rows(source=str(source), source_format="csv", source_options={"recursiveFileLookup": "true"})


@pytest.mark.parametrize(
    "options",
    [
        {"path": "/etc/passwd"},
        {"paths": '["/etc/passwd"]'},
        {"basePath": "/"},
        {"fs.defaultFS": "s3a://other"},
        {"fs.s3a.endpoint": "http://elsewhere"},
        {"fs.file.impl": "a.Class"},
        {"rowValidationXSDPath": "/etc/passwd"},
    ],
)
def test_options_that_name_paths_or_configure_file_systems_are_refused(
    form: Form, options: dict[str, str]
) -> None:
    with pytest.raises(InvalidInputError, match=r"source_options: .* is not allowed in a form"):
        form.rows(source_options=options)


@pytest.mark.parametrize(
    ("source_format", "options"),
    [
        ("csv", {"header": "true", "sep": ",", "nullValue": "NA", "inferSchema": "true", "mode": "FAILFAST"}),
        ("json", {"multiLine": "true", "timestampFormat": "yyyy", "primitivesAsString": "true"}),
        ("json", {"pathGlobFilter": "*.json", "ignoreCorruptFiles": "true", "recursiveFileLookup": "true"}),
    ],
)
def test_options_of_a_format_are_allowed(form: Form, source_format: str, options: dict[str, str]) -> None:
    assert len(form.rows(source_format=source_format, source_options=options)) < 3


@pytest.mark.parametrize(
    "source_format", ["text", "jdbc", "binaryFile", "xml", "lockgate", "org.example.Source"]
)
def test_other_formats_are_refused(form: Form, source_format: str) -> None:
    with pytest.raises(InvalidInputError, match=r"source_format .* is not allowed in a form"):
        form.rows(source_format=source_format)


def one_column(frame: Any) -> Any:
    """Return the frame of an allowed transformation."""
    return frame.select("id")


def test_a_transformation_is_called_if_a_pattern_allows_it(form: Form) -> None:
    allowed, other = f"{__name__}:one_column", "os:system"

    assert form.rows(transform=allowed) == [{"id": 1}]
    with pytest.raises(InvalidInputError, match="LOCKGATE_TRIGGER_TRANSFORMS"):
        form.rows(transform=other)


def test_without_lists_an_expression_may_call_everything(form: Form, spark: SparkSession) -> None:
    frame = read_files(
        spark,
        source=str(form.folder / "orders.json"),
        source_format="json",
        columns=["reflect('java.lang.String', 'valueOf', 1) as n"],
    )
    assert [row.n for row in frame.collect()] == ["1"]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"source": "/nowhere/orders.json"}, "Path does not exist: file:/nowhere/orders.json"),
        ({"where": "town = 'Gent'"}, "`town` cannot be resolved"),
        ({"columns": ["cast(id as"]}, "Syntax error"),
    ],
)
def test_an_unreadable_source_is_a_one_line_error_with_a_remedy(
    form: Form, spark: SparkSession, wrong: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        read_files(spark, **{"source": str(form.folder), "source_format": "json", **wrong})

    message = str(refused.value)
    assert reason in message
    assert message.endswith("nothing was staged; correct the parameters and start a new run")
    assert "\n" not in message
