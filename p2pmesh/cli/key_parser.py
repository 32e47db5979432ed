"""Names and syntax of ``p2pmesh key`` and of who may ask a node's ``/v1``; part of ``cli.parser``."""

from p2pmesh.app.config import DEFAULT_API_HOST
from p2pmesh.cli.actions import Commands, OptionGroup, add_action, add_group

KEY_ACTIONS = ("create", "list", "revoke", "allow-any")


def add_access(up: OptionGroup) -> None:
    """Where ``/v1`` listens, and whom it answers."""
    add = up.add_argument
    add("--host", metavar="ADDRESS", default=DEFAULT_API_HOST, help="where /v1 listens (default: %(default)s)")
    add(
        "--allow-host",
        metavar="NAME",
        action="append",
        default=[],
        help="clients may reach /v1 by this name; repeatable",
    )
    add(
        "--cors-origin",
        metavar="ORIGIN",
        action="append",
        default=[],
        help="web pages from there may ask /v1, * from anywhere; repeatable",
    )


def add_key(commands: Commands) -> None:
    """Adds ``key`` and its actions to the commands."""
    actions = add_group(commands, "key", "API keys of this node; without any, every key is accepted.")
    create = add_action(actions, "create", "Make a key, and show it once.")
    create.add_argument("--name", metavar="TEXT", default="", help="what it is for")
    create.add_argument("--max-requests", metavar="N", type=int, default=0, help="in flight at a time; 0: any")
    create.add_argument("--per-minute", metavar="N", type=int, default=0, help="requests a minute; 0: any")
    add_action(actions, "list", "List the keys, without their texts.")
    revoke = add_action(actions, "revoke", "Accept a key no longer.")
    revoke.add_argument("key", metavar="ID")
    add_action(actions, "allow-any", "Forget all keys, and accept any again.")
