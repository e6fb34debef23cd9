"""Hook of MkDocs: the navigation of docs/README.md, the Python reference, and links out of docs/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

REPOSITORY: Final = Path(__file__).parents[1]
PYTHON: Final = "reference/python.md"
PUBLIC: Final = ("lockgate", "lockgate.spark", "lockgate.fsspec")
_SHIM: Final = '<script src="https://unpkg.com/iframe-worker/shim"></script>'
_SECTION: Final = re.compile(r"^## (\w+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\]\(([\w/.-]+\.md)\)")
_CODE: Final = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_LIST: Final = re.compile(r"^(?!(?:[-*]|\d+\.) |[ |<])(.+)\n(?=(?:[-*]|\d+\.) )", re.MULTILINE)
"""A line of a paragraph that a list follows: GitHub needs no empty line there, Python-Markdown does."""
_OUTSIDE: Final = re.compile(r"\]\((?:\.\./)+(examples/[\w/.-]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the navigation from the start page: a section for each heading, in its order."""
    index = (REPOSITORY / "docs" / "README.md").read_text()
    nav: list[Any] = [{"Lockgate": "README.md"}]
    for heading, text in _SECTION.findall(index):
        more = [PYTHON] if heading == "Reference" else []
        nav.append({heading: [*_LINK.findall(text), *more]})
    config.nav = [*nav, "CHANGELOG.md"]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages and files that are not below docs/."""
    changelog = (REPOSITORY / "CHANGELOG.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, "CHANGELOG.md", content=changelog))
    files.append(File.generated(config, PYTHON, content=_python_page()))
    for path in (REPOSITORY / "examples" / "appendable").glob("*.py"):
        place = str(path.relative_to(REPOSITORY))
        files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Begin lists after a paragraph, and point links to examples at their copies in the site."""
    parts = _CODE.split(markdown)
    parts[::2] = [_LIST.sub(r"\1\n\n", text) for text in parts[::2]]
    markdown = "".join(parts)
    return _OUTSIDE.sub(rf"]({'../' * page.file.src_uri.count('/')}\1)", markdown)


def on_post_page(output: str, **_: Any) -> str:
    """Put in the script that the search of a site opened from files needs, in place of its address."""
    script = (REPOSITORY / "scripts" / "iframe_worker.js").read_text().replace("</script>", "<\\/script>")
    return output.replace(_SHIM, f"<script>{script}</script>")


on_post_template = on_post_page


def _python_page() -> str:
    """Return the reference of the public names, from their docstrings."""
    lines = ["# Python", "", "The public names, from their docstrings.", ""]
    for module in PUBLIC:
        place = REPOSITORY / module.replace(".", "/")
        source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        (names,) = re.findall(r"^__all__ = \[(.*?)\]", source.read_text(), re.MULTILINE | re.DOTALL)
        lines += [f"## {module}", ""]
        lines += [
            f"::: {module}.{name}\n    options: {{heading_level: 3}}\n"
            for name in re.findall(r'"(\w+)"', names)
        ]
    return "\n".join(lines)
