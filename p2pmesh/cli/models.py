"""``p2pmesh models``: calls ``app.model_commands`` and ``app.model_upkeep``, and prints what they found."""

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from p2pmesh.app import model_commands, model_upkeep
from p2pmesh.app.config import choose_home
from p2pmesh.app.model_commands import ModelsOptions
from p2pmesh.base.errors import ErrorCode
from p2pmesh.cli.exit_codes import EXIT_CODES, OK
from p2pmesh.cli.output import describe_table, describe_unusable, describe_value, printable
from p2pmesh.cli.progress import FetchLine, describe_fetch


def run_models(args: Namespace) -> int:
    """Runs one action; the exit code."""
    return _ACTIONS[args.action](args)


def _options(args: Namespace) -> ModelsOptions:
    given = {"context_tokens": "ctx_size", "lanes": "lanes"}
    capacity = {field: getattr(args, name) for field, name in given.items() if hasattr(args, name)}
    endpoint, offline = getattr(args, "hub_endpoint", None), getattr(args, "offline", False)
    return ModelsOptions(choose_home(args.home), endpoint, offline, **capacity)


def _list(args: Namespace) -> int:
    if args.catalog:
        return _print_rows(args, model_commands.list_catalog(), "the catalog is empty")
    models = model_commands.list_models(_options(args))
    for path, why in model_commands.list_unusable(_options(args)):
        sys.stderr.write(f"p2pmesh: {printable(describe_unusable(path, why))}\n")
    return _print_rows(args, models, "no models here; --demo serves the one that pip installs, --model takes a file")


def _tell(line: str) -> None:
    sys.stderr.write(f"{printable(line)}\n")


def _search(args: Namespace) -> int:
    found = model_commands.search_hub(_options(args), args.query, args.limit, _tell)
    return _print_rows(args, found, "the hub has no repository with GGUF files for these words")


def _show(args: Namespace) -> int:
    return _print_facts(args, model_commands.show_model(_options(args), args.model, _tell))


def _pull(args: Namespace) -> int:
    line = FetchLine(sys.stderr)
    try:
        facts = model_commands.pull_model(
            _options(args), args.model, lambda fields: line.show(fields, printable(describe_fetch(fields))), _tell
        )
    finally:
        line.end()
    return _print_facts(args, facts)


def _remove(args: Namespace) -> int:
    return _print_facts(args, model_upkeep.remove_model(_options(args), args.model))


def _prune(args: Namespace) -> int:
    return _print_facts(args, model_upkeep.prune(_options(args)))


def _verify(args: Namespace) -> int:
    facts = model_upkeep.verify(_options(args), args.model)
    _print_facts(args, facts)
    return EXIT_CODES[ErrorCode.ARTIFACT_CORRUPT] if facts["damaged"] else OK


def _print_rows(args: Namespace, rows: Sequence[Mapping[str, Any]], none: str) -> int:
    return _print(json.dumps(rows, indent=2) if args.json else "\n".join(describe_table(rows) if rows else (none,)))


def _print_facts(args: Namespace, facts: Mapping[str, Any]) -> int:
    return _print(json.dumps(facts, indent=2) if args.json else "\n".join(describe_value(facts)))


def _print(text: str) -> int:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    return OK


_ACTIONS: Mapping[str, Callable[[Namespace], int]] = {
    "list": _list,
    "search": _search,
    "show": _show,
    "pull": _pull,
    "remove": _remove,
    "prune": _prune,
    "verify": _verify,
}
