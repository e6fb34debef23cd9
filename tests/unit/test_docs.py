"""Links in the documentation have targets, and imports in its examples name existing objects."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from typer.testing import CliRunner

from scripts import operators_page

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted(
    [
        *(REPOSITORY / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
        *(REPOSITORY / "docs").rglob("*.md"),
    ]
)
DECISIONS = REPOSITORY / "docs" / "internals" / "decisions.md"
ARCHITECTURE = DECISIONS.with_name("architecture.md")
PARTS = ("storage_core", "workers", "operators", "plugins", "dags", "scripts", "benchmarks", "tests")
CODE_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)(?:\s+\"[^\"]*\")?\)")
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def prose(page: Path) -> str:
    """Return a page without its code blocks and code spans, in which brackets are no links."""
    return re.sub(r"(`+)(?:(?!\1).)+?\1", "code", CODE_BLOCK.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", CODE_BLOCK.sub("", page.read_text()), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        number, anchor = 0, slug
        while anchor in found:
            number += 1
            anchor = f"{slug}-{number}"
        found.add(anchor)
    return found


def broken_links(page: Path) -> Iterator[str]:
    """Yield each relative link of a page that names no file, or no heading of it."""
    for link in LINK.findall(prose(page)):
        if ELSEWHERE.match(link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_relative_to(REPOSITORY) or not target.exists():
            yield f"{link}: no such file"
        elif anchor and (target.suffix != ".md" or anchor not in anchors(target)):
            yield f"{link}: no such heading"


def quoted(cell: str) -> list[str]:
    """Return the text between backquotes of a cell."""
    return re.findall(r"`([^`]+)`", cell)


def documented_imports(page: Path) -> Iterator[tuple[str, str]]:
    """Yield module and name of each import from Lockgate in a page's Python examples."""
    for _, language, source in CODE_BLOCK.findall(page.read_text()):
        if language != "python":
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "lockgate":
                yield from ((str(node.module), alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                names = (alias.name for alias in node.names)
                yield from ((name, "") for name in names if name.partition(".")[0] == "lockgate")


def is_importable(module: str, name: str) -> bool:
    """Return whether `from module import name` works; without a name, whether `import module` does."""
    try:
        found = importlib.import_module(module)
        return not name or hasattr(found, name) or importlib.util.find_spec(f"{module}.{name}") is not None
    except ImportError:
        return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_relative_link_names_a_file_and_a_heading(page: Path) -> None:
    assert list(broken_links(page)) == []


def test_every_page_can_be_reached_from_the_index() -> None:
    index, todo = REPOSITORY / "docs" / "README.md", [REPOSITORY / "docs" / "README.md"]
    reached = {index}
    while todo:
        page = todo.pop()
        links = (link.partition("#")[0] for link in LINK.findall(prose(page)) if not ELSEWHERE.match(link))
        pages = {(page.parent / unquote(link)).resolve() for link in links if link.endswith(".md")}
        todo += [found for found in pages - reached if found.exists()]
        reached |= pages
    assert sorted(set((REPOSITORY / "docs").rglob("*.md")) - reached) == []


def test_every_decision_that_a_page_or_the_code_names_is_recorded() -> None:
    recorded = set(re.findall(r"^## ADR (\d+)$", DECISIONS.read_text(), re.MULTILINE))
    code = (path for part in PARTS for path in (REPOSITORY / part).rglob("*.py"))
    named = {
        (str(path.relative_to(REPOSITORY)), number)
        for path in (*PAGES, *code)
        for number in re.findall(r"\bADR (\d+)", path.read_text())
    }
    assert len(recorded) > 10
    assert sorted((path, number) for path, number in named if number not in recorded) == []


def test_the_folders_of_the_architecture_exist() -> None:
    rows = re.findall(r"^\| (`\w[^|]*) \|[^|]*\|([^|]*)\|$", ARCHITECTURE.read_text(), re.MULTILINE)
    folders = [
        (folder, name) for cell, inner in rows for folder in quoted(cell) for name in ("", *quoted(inner))
    ]
    assert len(folders) > 30
    assert [folder + name for folder, name in folders if not (REPOSITORY / folder / name).is_dir()] == []


def test_the_examples_import_only_what_exists() -> None:
    documented = {(page.name, module, name) for page in PAGES for module, name in documented_imports(page)}
    assert len(documented) > 10
    assert [entry for entry in sorted(documented) if not is_importable(entry[1], entry[2])] == []


def test_the_page_of_operators_is_what_make_docs_writes() -> None:
    assert operators_page.PAGE.read_text() == operators_page.page(), "run `make docs`"


def test_every_setting_is_documented() -> None:
    from lockgate.storage_core.settings import Settings

    documented = (REPOSITORY / "docs" / "reference" / "settings.md").read_text()
    names = (f"| `LOCKGATE_{name.upper()}` |" for name in Settings.__struct_fields__)
    in_programs = ["| `LOCKGATE_IS_ONE_JOURNAL` |", "| `LOCKGATE_S3_CREDENTIALS` |"]
    assert sorted(name for name in names if name not in documented) == in_programs


def test_the_commands_in_the_pages_exist() -> None:
    from lockgate.storage_core.cli.root_command import build

    groups = "blobs|broker|dags|jobs|journal|store|uploads|xcom"
    command = re.compile(
        rf"\blockgate ((?:{groups}) [a-z][a-z-]+|blob-server|committers|manifest|version|worker)\b"
    )
    pages = (page.read_text() for page in PAGES if page.name != "CHANGELOG.md")
    documented = {name for page in pages for name in command.findall(page)}
    assert len(documented) > 20
    commands = build()
    answers = {name: CliRunner().invoke(commands, [*name.split(), "--help"]) for name in sorted(documented)}
    assert [name for name, answer in answers.items() if answer.exit_code != 0] == []
