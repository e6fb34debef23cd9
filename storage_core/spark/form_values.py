"""Check a reader's options and SQL expressions that come from a form: functions of columns, and nothing else.

An expression is parsed, and its tree is checked before Spark looks a function up: analysis loads the class
that `reflect` names, and optimisation calls it. The analysed plan is checked as well, because words such as
`current_user` are only found to be functions there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from lockgate.storage_core.errors import InvalidInputError

_GROUPS: Final = frozenset(
    f"{group}_funcs"
    for group in (
        *("agg", "array", "bitwise", "collection", "conditional", "conversion", "csv", "datetime"),
        *("generator", "hash", "json", "lambda", "map", "math", "predicate", "sketch", "string", "struct"),
        *("url", "variant", "vector", "window"),
    )
)
"""Groups of Spark's own functions that compute a value from values. Not among them: `misc_funcs` (calls of
Java, the user, the host's version), `xml_funcs`, `avro_funcs` and `protobuf_funcs` (options name files)."""

_OTHERS: Final = frozenset(
    {
        *("aes_decrypt", "aes_encrypt", "assert_true", "hmac", "monotonically_increasing_id", "raise_error"),
        *("spark_partition_id", "try_aes_decrypt", "typeof", "uuid"),
    }
)
"""Functions of `misc_funcs` that compute a value from values."""

_SYNTAX: Final = frozenset(
    {
        *("Alias", "MultiAlias", "Literal", "Cast", "NamedArgumentExpression", "SortOrder"),
        *("UnresolvedAttribute", "UnresolvedExtractValue", "UnresolvedFunction", "UnresolvedStar"),
        *("LambdaFunction", "UnresolvedNamedLambdaVariable", "AggregateExpression"),
        *("WindowExpression", "WindowSpecDefinition", "SpecifiedWindowFrame", "UnspecifiedFrame$"),
        *("CurrentRow$", "UnboundedPreceding$", "UnboundedFollowing$"),
        *("IsNull", "IsNotNull", "LikeAny", "LikeAll", "NotLikeAny", "NotLikeAll", "Collate"),
        *("UnresolvedCollation", "CreateNamedStruct", "TimestampAdd", "TimestampDiff"),
        *("StringTrim", "StringTrimLeft", "StringTrimRight", "StringTrimBoth", "SemiStructuredExtract"),
    }
)
"""Nodes of Spark's SQL that are no function of the registry."""

_OPTIONS: Final[Mapping[str, str]] = {
    "csv": "catalyst.csv.CSVOptions",
    "json": "catalyst.json.JSONOptions",
    "orc": "execution.datasources.orc.OrcOptions",
    "parquet": "execution.datasources.parquet.ParquetOptions",
}
"""Spark's own lists of the options of each format."""

_FILE_OPTIONS: Final = frozenset(
    {
        *("ignoreCorruptFiles", "ignoreMissingFiles", "modifiedAfter", "modifiedBefore"),
        *("pathGlobFilter", "recursiveFileLookup", "timeZone"),
    }
)
"""Options of all formats. Not among them: `basePath`, a path; and `fs.…`, the file system's configuration."""

_PACKAGES: Final = (
    "org.apache.spark.sql.catalyst.expressions.",
    "org.apache.spark.sql.catalyst.expressions.aggregate.",
    "org.apache.spark.sql.catalyst.analysis.",
)


class _Functions(NamedTuple):
    """Spark's own functions.

    Attributes:
        allowed: Names of those that are allowed.
        classes: Names of their classes.
        refused: Names of the classes of all others.
    """

    allowed: frozenset[str]
    classes: frozenset[str]
    refused: frozenset[str]


def check_options(spark: SparkSession, source_format: str, options: Iterable[str]) -> None:
    """Check the names of options of Spark's reader: those that describe the format, and choose files.

    Raises:
        InvalidInputError: The format is not Parquet, ORC, JSON or CSV, or it has no such option.
    """
    if source_format not in _OPTIONS:
        raise InvalidInputError(
            f"source_format {source_format!r} is not allowed in a form; nothing was read; "
            f"use one of {', '.join(_OPTIONS)}"
        )
    known: Any = _java(spark, "_jvm").org.apache.spark.sql
    for part in _OPTIONS[source_format].split("."):
        known = getattr(known, part)
    for name in options:
        if name not in _FILE_OPTIONS and not known.isValidOption(name):
            raise InvalidInputError(
                f"source_options: {name!r} is not allowed in a form: it is no option of {source_format}; "
                "nothing was read; leave it out"
            )


def check_expressions(frame: DataFrame, expressions: Iterable[str]) -> None:
    """Check SQL expressions on the columns of a data frame, without resolving them.

    Switches the substitution of variables off in the session: `${env:NAME}` stays as it is.

    Raises:
        InvalidInputError: One calls a function that is not allowed, has a subquery, or reads something else
            than the frame's columns.
        AnalysisException: One is no SQL expression.
    """
    spark = frame.sparkSession
    session = _java(spark, "_jsparkSession")
    spark.conf.set("spark.sql.variable.substitute", "false")
    functions = _functions(spark)
    parser = session.sessionState().sqlParser()
    columns = {name.lower() for name in frame.columns}
    for text in expressions:
        for name, node in _nodes(parser.parseExpression(text)):
            _check_node(text, name, node, functions)
            if name == "UnresolvedAttribute":
                column = str(node.nameParts().apply(0)).lower()
                if column == "_metadata" and column not in columns:
                    raise _refusal(text, "_metadata")


def check_plan(frame: DataFrame, source: DataFrame) -> None:
    """Check that an analysed data frame reads its source and nothing else, by functions that are allowed.

    Raises:
        InvalidInputError: It does not.
    """
    functions = _functions(frame.sparkSession)
    plan, origin = (_java(each, "_jdf").queryExecution().analyzed() for each in (frame, source))
    [leaf] = _items(origin.collectLeaves())
    if not all(leaf.sameResult(each) for each in _items(plan.collectLeaves())):
        raise _refusal("", "another source")
    for _, node in _nodes(plan):
        for expression in _items(node.expressions()):
            for name, _ in _nodes(expression):
                if name in functions.refused or name == "VariableReference" or "Subquery" in name:
                    raise _refusal("", name)  # its text would have the value of a variable


def _check_node(text: str, name: str, node: Any, functions: _Functions) -> None:
    if name == "UnresolvedFunction":
        parts = [str(part) for part in _items(node.nameParts())]
        if len(parts) != 1 or parts[0].lower() not in functions.allowed:
            raise _refusal(text, ".".join(parts))
    elif name not in _SYNTAX and name not in functions.classes:
        raise _refusal(text, name)


def _refusal(text: str, what: str) -> InvalidInputError:
    return InvalidInputError(
        f"expression{f' {text!r}' if text else ''}: {what} is not allowed in a form; nothing was computed; "
        "use functions of columns, or write a transformation, which LOCKGATE_TRIGGER_TRANSFORMS can allow"
    )


@lru_cache(maxsize=1)
def _functions(spark: Any) -> _Functions:
    utils = _java(spark, "_jvm").org.apache.spark.sql.api.python.PythonSQLUtils
    groups: dict[bool, dict[str, str]] = {True: {}, False: {}}
    for info in utils.listBuiltinFunctionInfos():
        name = str(info.getName())
        is_allowed = str(info.getGroup()) in _GROUPS or name in _OTHERS
        groups[is_allowed][name] = _short(str(info.getClassName()))
    refused = frozenset(groups[False].values())
    return _Functions(frozenset(groups[True]), frozenset(groups[True].values()) - refused, refused)


def _java(python: Any, name: str) -> Any:
    """Return the Java object of a session or a frame."""
    found = getattr(python, name, None)
    if found is None:
        raise InvalidInputError(
            "values of a form cannot be checked with Spark Connect, whose plans are on its server; nothing "
            "was read; use a Spark master, or a DAG of your own"
        )
    return found


def _nodes(tree: Any) -> Iterator[tuple[str, Any]]:
    """Return each node of a tree with the name of its class."""
    yield _short(str(tree.getClass().getName())), tree
    for child in _items(tree.children()):
        yield from _nodes(child)


def _items(sequence: Any) -> list[Any]:
    """Return the items of a Scala sequence."""
    return [sequence.apply(number) for number in range(sequence.size())]


def _short(name: str) -> str:
    """Return the name of a class of Spark's catalyst without its package; other names are unchanged."""
    package, _, short = name.rpartition(".")
    return short if f"{package}." in _PACKAGES else name
