"""Writes ``docs/architecture/modules.md``: every module of the package with the first sentence of its docstring.

``python .ci/list_modules.py``; ``check_docs`` holds the page against the tree. Standard library only.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "p2pmesh"
PAGE = ROOT / "docs/architecture/modules.md"
LAYERS = ("cli", "app", "api", "node", "adapters", "sim", "ports", "core", "wire", "model", "base")
_HEAD = """\
# Modules

What each module owns, by layer; written by `python .ci/list_modules.py` from the first sentences of their docstrings,
which say more: what stays elsewhere, and why. Where to begin: [architecture](../architecture.md#map).
"""
_NEXT_SENTENCE = re.compile(r"(?<=[.]) +(?=[A-Z`])")


def main() -> None:
    """Writes the page."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())


def page() -> str:
    """The page as it has to be."""
    return _HEAD + "".join(f"\n## {layer}\n\n" + "".join(lines_of(layer)) for layer in LAYERS)


def lines_of(layer: str) -> Iterator[str]:
    """A line for each module; a package only where its docstring says something."""
    for path in sorted((PACKAGE / layer).rglob("*.py")):
        is_package = path.name == "__init__.py"
        name = (path.parent if is_package else path.with_suffix("")).relative_to(PACKAGE)
        said = first_sentence(path)
        if said or not is_package:
            yield f"- `{name}{'/' if is_package else ''}`: {said}\n"


def first_sentence(path: Path) -> str:
    """Of a module's docstring; empty if it has none."""
    paragraph = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0]
    return _NEXT_SENTENCE.split(" ".join(paragraph.split()).replace("``", "`"))[0]


if __name__ == "__main__":
    main()
