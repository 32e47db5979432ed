"""Names and syntax of ``p2pmesh models``, and the options that say which hub; part of ``cli.parser``."""

import argparse
from typing import TypeAlias

from p2pmesh.app.config import HOME_VARIABLE
from p2pmesh.base.limits import DEFAULT_CONTEXT_TOKENS, DEFAULT_LANES

MODELS_ACTIONS = ("list", "search", "show", "pull", "remove", "prune", "verify")
DEFAULT_SEARCH_RESULTS = 20

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_hub_options(parser: argparse.ArgumentParser) -> None:
    """Which hub, and whether it may be asked."""
    parser.add_argument("--hub-endpoint", metavar="URL", help="the hub (default: $HF_ENDPOINT or huggingface.co)")
    parser.add_argument("--offline", action="store_true", help="never ask the hub (also: HF_HUB_OFFLINE=1)")


def add_models(commands: _Commands) -> None:
    """Adds ``models`` and its actions to the commands."""
    summary = "Models: on this machine and on the hub."
    models = commands.add_parser("models", help=summary, description=summary, allow_abbrev=False)
    actions = models.add_subparsers(dest="action", metavar="ACTION", required=True)
    listed = _add_action(actions, "list", "List the models that --model finds by name.")
    listed.add_argument("--catalog", action="store_true", help="instead, the names that stand for models of the hub")
    search = _add_action(actions, "search", "Search the hub for repositories with GGUF files.")
    search.add_argument("query", metavar="WORDS")
    search.add_argument("--limit", type=int, metavar="N", default=DEFAULT_SEARCH_RESULTS, help="default: %(default)s")
    shown = _add_action(actions, "show", "Show what a model holds, what it needs, and where it would fit.")
    shown.add_argument("model", metavar="REF")
    _add_capacity(shown)
    pull = _add_action(actions, "pull", "Fetch a model from the hub, going on where an earlier pull ended.")
    pull.add_argument("model", metavar="REF")
    removed = _add_action(actions, "remove", "Remove a model's files from this machine, unless a node uses them.")
    removed.add_argument("model", metavar="REF")
    _add_action(actions, "prune", "Remove half downloads, replaced commits, unused stage files, and quarantined files.")
    verified = _add_action(actions, "verify", "Read files and compare their sha256; put damaged ones aside.")
    verified.add_argument("model", metavar="REF", nargs="?", help="default: everything whose digest is known")
    for parser in (search, shown, pull, removed, verified, listed):
        add_hub_options(parser)


def _add_capacity(shown: argparse.ArgumentParser) -> None:
    shown.add_argument("--ctx-size", type=int, metavar="N", default=DEFAULT_CONTEXT_TOKENS, help="default: %(default)s")
    shown.add_argument("--lanes", type=int, metavar="N", default=DEFAULT_LANES, help="default: %(default)s")


def _add_action(actions: _Commands, name: str, summary: str) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    parser.add_argument(
        "--home", metavar="DIR", help=f"keys, cache and state (default: ${HOME_VARIABLE} or ~/.p2pmesh)"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    return parser
