"""Names and syntax of ``p2pmesh auth``; part of ``cli.parser``."""

import argparse
from collections.abc import Callable

from p2pmesh.app.config import PASSPHRASE_VARIABLE
from p2pmesh.cli.actions import Commands, add_action, add_group
from p2pmesh.core.ownership import TrustPolicy
from p2pmesh.wire.ownership import LIFE_MS

AUTH_ACTIONS = (
    "init", "status", "sign-node", "renew-node", "verify-node", "rotate-node", "rotate-owner", "revoke-owner",
    "revoke-node", "trust",
)  # fmt: skip
_HOURS = LIFE_MS // 3_600_000


def add_auth(commands: Commands) -> None:
    """Adds ``auth`` and its actions to the commands."""
    summary = "The owner's key, claims on nodes, and whom this node trusts."
    actions = add_group(commands, "auth", summary)
    for add in (
        _add_init,
        _add_status,
        _add_sign_node,
        _add_renew_node,
        _add_verify_node,
        _add_rotations,
        _add_revocations,
        _add_trust,
    ):
        add(actions)  # fmt: skip


def _with_key(parser: argparse.ArgumentParser, *, is_opened: bool = True) -> Callable[..., argparse.Action]:
    """The options of a command that looks at the owner key, or opens it; gives ``add_argument``."""
    parser.add_argument("--owner-key", metavar="FILE", help="the owner key (default: owner.key in the home)")
    if is_opened:
        text = f"its passphrase, first line (else ${PASSPHRASE_VARIABLE}, the keychain, or the terminal)"
        parser.add_argument("--passphrase-file", metavar="FILE", help=text)
    return parser.add_argument


def _add_init(actions: Commands) -> None:
    add = _with_key(add_action(actions, "init", "Make an owner key."))
    add("--keychain", action="store_true", help="keep the passphrase in the keychain of the system too")
    add("--force", action="store_true", help="replace the owner key that is there, for ever")


def _add_status(actions: Commands) -> None:
    _with_key(add_action(actions, "status", "Show owner, node, claim and trust of a home."), is_opened=False)


def _add_sign_node(actions: Commands) -> None:
    add = _with_key(add_action(actions, "sign-node", "Sign this home's node, or another by its peer id."))
    _add_hours(add)
    add("--label", metavar="TEXT", help="the owner's name for the node")
    which = _with_group(actions, "sign-node")
    which("--peer-id", metavar="ID", help="sign this node of another machine, into --out")
    which("--claim", metavar="FILE", help="take in a claim that was signed on another machine")
    add("--out", metavar="FILE", help="where to write the claim of --peer-id (default: ID.claim)")


def _with_group(actions: Commands, name: str) -> Callable[..., argparse.Action]:
    return actions.choices[name].add_mutually_exclusive_group().add_argument


def _add_renew_node(actions: Commands) -> None:
    add = _with_key(add_action(actions, "renew-node", "Sign this home's node again, with the label it has."))
    _add_hours(add)
    add("--if-due", action="store_true", help="only from 36 hours before the end on")


def _add_verify_node(actions: Commands) -> None:
    add = add_action(
        actions, "verify-node", "Show what this node makes of a claim; exit 26 unless verified."
    ).add_argument
    add("--claim", metavar="FILE", help="a claim file (default: the claim of this home)")
    add("--peer-id", metavar="ID", help="the node that shows it (default: the one it names)")


def _add_rotations(actions: Commands) -> None:
    _with_key(add_action(actions, "rotate-node", "Give this home's node a new key and peer id, and sign it."))
    add = _with_key(add_action(actions, "rotate-owner", "Make a new owner key and sign this home's node with it."))
    add("--new-passphrase-file", metavar="FILE", help="the new key's passphrase (default: the old one's)")


def _add_revocations(actions: Commands) -> None:
    owner = add_action(actions, "revoke-owner", "No longer believe the claims of an owner.")
    owner.add_argument("owner_id", metavar="OWNER_ID")
    node = add_action(actions, "revoke-node", "No longer believe a node, or one claim.")
    which = node.add_mutually_exclusive_group(required=True)
    which.add_argument("peer_id", metavar="PEER_ID", nargs="?")
    which.add_argument("--certificate", metavar="ID", help="revoke the claim of this certificate id alone")
    for parser in (owner, node):
        parser.add_argument("--undo", action="store_true", help="take the revocation back")


def _add_trust(actions: Commands) -> None:
    trust = actions.add_parser("trust", help="Owners that this node trusts, and its policy.", allow_abbrev=False)
    trusts = trust.add_subparsers(dest="trust_action", metavar="ACTION", required=True)
    added = add_action(trusts, "add", "Trust an owner.")
    added.add_argument("owner_id", metavar="OWNER_ID")
    added.add_argument("--label", metavar="TEXT", default="", help="a name for the owner")
    add_action(trusts, "remove", "No longer trust an owner.").add_argument("owner_id", metavar="OWNER_ID")
    add_action(trusts, "list", "Show whom this node trusts and what is revoked.")
    policy = add_action(trusts, "policy", "Choose what this node does with peers by their owner.")
    policy.add_argument("policy", choices=[item.value for item in TrustPolicy])


def _add_hours(add: Callable[..., argparse.Action]) -> None:
    add("--hours", type=int, metavar="N", default=_HOURS, help="life of the claim (default: %(default)s)")
