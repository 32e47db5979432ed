"""Names and syntax of ``p2pmesh models``, and the options that say which hub; part of ``cli.parser``."""

import argparse
from functools import partial

from p2pmesh.base.limits import DEFAULT_CONTEXT_TOKENS, DEFAULT_LANES
from p2pmesh.cli.actions import STATE_HOME, Commands, OptionGroup, add_action, add_group

MODELS_ACTIONS = ("list", "search", "show", "pull", "remove", "prune", "verify")
DEFAULT_SEARCH_RESULTS = 20


def add_hub_options(parser: OptionGroup) -> None:
    """Which hub, and whether it may be asked."""
    parser.add_argument("--hub-endpoint", metavar="URL", help="the hub (default: $HF_ENDPOINT or huggingface.co)")
    parser.add_argument("--offline", action="store_true", help="never ask the hub (also: HF_HUB_OFFLINE=1)")


def add_models(commands: Commands) -> None:
    """Adds ``models`` and its actions to the commands."""
    summary = "Models: on this machine and on the hub."
    add = partial(add_action, add_group(commands, "models", summary), home=STATE_HOME)
    listed = add("list", "List the models that --model finds by name.")
    listed.add_argument("--catalog", action="store_true", help="instead, the names that stand for models of the hub")
    search = add("search", "Search the hub for repositories with GGUF files.")
    search.add_argument("query", metavar="WORDS")
    search.add_argument("--limit", type=int, metavar="N", default=DEFAULT_SEARCH_RESULTS, help="default: %(default)s")
    shown = add("show", "Show what a model holds, what it needs, and where it would fit.")
    shown.add_argument("model", metavar="REF")
    _add_capacity(shown)
    pull = add("pull", "Fetch a model from the hub, going on where an earlier pull ended.")
    pull.add_argument("model", metavar="REF")
    removed = add("remove", "Remove a model's files from this machine, unless a node uses them.")
    removed.add_argument("model", metavar="REF")
    add("prune", "Remove half downloads, replaced commits, unused stage files, and quarantined files.")
    verified = add("verify", "Read files and compare their sha256; put damaged ones aside.")
    verified.add_argument("model", metavar="REF", nargs="?", help="default: everything whose digest is known")
    for parser in (search, shown, pull, removed, verified, listed):
        add_hub_options(parser)


def _add_capacity(shown: argparse.ArgumentParser) -> None:
    shown.add_argument("--ctx-size", type=int, metavar="N", default=DEFAULT_CONTEXT_TOKENS, help="default: %(default)s")
    shown.add_argument("--lanes", type=int, metavar="N", default=DEFAULT_LANES, help="default: %(default)s")
