"""Holds the documents against the tree: top level, links, the README's commands, names that documents list.

Standard library only, so that it runs before anything is installed. What a document says in sentences is for people to
check.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import list_modules

ROOT = Path(__file__).resolve().parent.parent
TOP_LEVEL = {"pyproject.toml", "p2pmesh", "protocols", "tests", "interop", "docs", "README.md"}
NO_PACKAGES = ("docs", "interop")
"""py-libp2p installs top-level packages of these names; a package here would hide them, or be hidden."""

# A document, and the enums whose values it must name in code font.
NAMED = (
    ("docs/events.md", "p2pmesh/app/events.py", "EventName"),
    ("docs/architecture/runs.md", "p2pmesh/core/coordination.py", "RunPhase"),
    ("docs/architecture/runs.md", "p2pmesh/core/coordination.py", "StageState"),
)
ONE_PAGE = "docs/architecture.md"
PAGE_LINES = 120
PAGE_BYTES = 12_000

_MODULE = re.compile(rf"`((?:{'|'.join(list_modules.LAYERS)})/[\w/]+)`")
_LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def main() -> int:
    """Prints each finding; the exit code says whether there is any."""
    findings = [*top_level(), *packages(), *links(), *commands(), *names(), *one_page(), *modules()]
    for finding in findings:
        print(finding)
    print(f"{len(findings)} findings in {len(documents())} documents and the top level")
    return 1 if findings else 0


def top_level() -> Iterator[str]:
    """The top level holds what the design names and dot-files; what tools leave there is ignored by git."""
    for path in sorted(ROOT.iterdir()):
        is_left_by_tools = path.suffix == ".egg-info" or path.name in ("build", "dist", "__pycache__")
        if not path.name.startswith(".") and path.name not in TOP_LEVEL and not is_left_by_tools:
            yield f"{path.name}: does not belong at the top level"
    yield from (f"{name}: is missing" for name in sorted(TOP_LEVEL) if not (ROOT / name).exists())


def packages() -> Iterator[str]:
    """``docs`` and ``interop`` are no Python packages."""
    for name in NO_PACKAGES:
        for path in (ROOT / name).rglob("__init__.py"):
            if "node_modules" not in path.parts:
                yield f"{path.relative_to(ROOT)}: {name}/ is no Python package"


def documents() -> list[Path]:
    """Every Markdown file of ours."""
    ignored = ("node_modules", ".venv", ".hypothesis")
    return [
        path
        for path in sorted(ROOT.rglob("*.md"))
        if not any(part.startswith(ignored) for part in path.relative_to(ROOT).parts)
    ]


def links() -> Iterator[str]:
    """Relative links lead to files, and their fragments to headings."""
    for document in documents():
        for target in _LINK.findall(_FENCE.sub("", document.read_text())):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, fragment = target.partition("#")
            found = (document.parent / path).resolve() if path else document
            where = document.relative_to(ROOT)
            if not found.exists():
                yield f"{where}: {target} leads nowhere"
            elif fragment and fragment not in anchors(found):
                yield f"{where}: {target} names no heading"


def anchors(document: Path) -> set[str]:
    """The fragments that the headings of a document answer to."""
    text = _FENCE.sub("", document.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(text)}


def commands() -> Iterator[str]:
    """The README's commands exist, install the same system packages, and pin what ``pyproject.toml`` pins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pin = next(line for line in project["dependencies"] if line.startswith("llama-cpp-python"))
    blocks = {name: command(name) for name in ("serve", "test")}
    for name, block in blocks.items():
        if f"pip install -v {pin} " not in block:
            yield f"README.md: the {name} command does not install {pin}"
    serve, test = (block.split(".venv/bin/pip install -e")[0] for block in blocks.values())
    if serve != test:
        yield "README.md: the two commands prepare the machine differently"


def command(name: str) -> str:
    """The shell block of the README after the comment ``<!-- command: NAME -->``."""
    found = re.search(rf"^<!-- command: {name} -->\n```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    if found is None:
        raise SystemExit(f"README.md has no block after <!-- command: {name} -->")
    return found.group(1)


def names() -> Iterator[str]:
    """Enums whose values a document lists are listed whole."""
    for document, source, enum in NAMED:
        body = re.search(rf"^class {enum}\(StrEnum\):\n(.*?)(?=^\S|\Z)", (ROOT / source).read_text(), re.M | re.S)
        values = re.findall(r'^    [A-Z_]+ = "(\w+)"', body.group(1), re.M) if body else []
        if not values:
            yield f"{source}: {enum} was not found"
        text = (ROOT / document).read_text()
        yield from (f"{document}: {enum} {value} is not described" for value in values if f"`{value}`" not in text)


def one_page() -> Iterator[str]:
    """What is said to be one page is; detail belongs behind it."""
    text = (ROOT / ONE_PAGE).read_text()
    lines, size = text.count("\n"), len(text.encode())
    if lines > PAGE_LINES or size > PAGE_BYTES:
        more = "move detail into docs/architecture/ or docstrings"
        yield f"{ONE_PAGE}: {lines} lines and {size} bytes are more than a page ({PAGE_LINES}, {PAGE_BYTES}); {more}"


def modules() -> Iterator[str]:
    """The list of modules is that of the tree, each says what it owns, and documents name none that is not there."""
    page = list_modules.page()
    if not list_modules.PAGE.exists() or list_modules.PAGE.read_text() != page:
        yield f"{list_modules.PAGE.relative_to(ROOT)}: is not that of the tree; run python .ci/list_modules.py"
    yield from (
        f"{line[3:-3]} has no docstring" for line in page.splitlines() if line.startswith("- ") and line[-1] == " "
    )
    for document in (ROOT / ONE_PAGE, *sorted(list_modules.PAGE.parent.glob("*.md"))):
        for name in sorted(set(_MODULE.findall(document.read_text()))):
            path = list_modules.PACKAGE / name
            if not path.is_dir() and not path.with_suffix(".py").exists():
                yield f"{document.relative_to(ROOT)}: there is no module {name}"


if __name__ == "__main__":
    sys.exit(main())
