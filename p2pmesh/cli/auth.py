"""``p2pmesh auth``: which command of ``app`` an action is, and what it may ask at the terminal."""

import getpass
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from p2pmesh.adapters.home_lock import hold_records
from p2pmesh.app import auth, trust_commands
from p2pmesh.app.claims import OwnerFiles
from p2pmesh.app.config import choose_home
from p2pmesh.app.passphrase import PassphraseSources
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.cli.exit_codes import EXIT_CODES, OK
from p2pmesh.core.ownership import TrustPolicy

Facts = dict[str, Any]


def run_auth(args: Namespace) -> tuple[Facts, int]:
    """What to print, and the exit code."""
    if args.action == "verify-node":
        facts, is_verified = auth.verify_node(_files(args), _path(args.claim), args.peer_id)
        return facts, OK if is_verified else EXIT_CODES[ErrorCode.CLAIM_INVALID]
    if args.action == "status":
        return auth.status(_files(args)), OK
    action = args.trust_action if args.action == "trust" else args.action
    if action == "list":
        return trust_commands.describe_trust(choose_home(args.home)), OK
    with hold_records(choose_home(args.home)):
        return _CHANGES[action](args), OK


def _init(args: Namespace) -> Facts:
    return auth.init(_files(args), _sources(args), is_forced=args.force, use_keychain=args.keychain)


def _sign_node(args: Namespace) -> Facts:
    files = _files(args)
    if args.claim is not None:
        return auth.take_claim(files, Path(args.claim))
    options = auth.ClaimOptions(args.label, args.hours)
    if args.peer_id is None:
        if args.out is not None:
            raise ConfigError(ErrorCode.CONFIG_INVALID, "--out goes with --peer-id; this home's node keeps its claim")
        return auth.sign_node(files, _sources(args), options)
    auth.check_peer_id(args.peer_id)
    out = Path(args.out or f"{args.peer_id}.claim")
    return auth.sign_other_node(files, _sources(args), options, args.peer_id, out)


def _renew_node(args: Namespace) -> Facts:
    return auth.renew_node(_files(args), _sources(args), args.hours, only_if_due=args.if_due)


def _rotate_node(args: Namespace) -> Facts:
    return auth.rotate_node(_files(args), _sources(args))


def _rotate_owner(args: Namespace) -> Facts:
    file = _path(args.new_passphrase_file)
    new = None if file is None else PassphraseSources(file, option="--new-passphrase-file")
    return auth.rotate_owner(_files(args), _sources(args), new)


def _revoke_owner(args: Namespace) -> Facts:
    return trust_commands.revoke_owner(choose_home(args.home), args.owner_id, is_undone=args.undo)


def _revoke_node(args: Namespace) -> Facts:
    home = choose_home(args.home)
    if args.certificate is not None:
        return trust_commands.revoke_certificate(home, args.certificate, is_undone=args.undo)
    return trust_commands.revoke_node(home, args.peer_id, is_undone=args.undo)


def _files(args: Namespace) -> OwnerFiles:
    return OwnerFiles.of(choose_home(args.home), getattr(args, "owner_key", None))


def _sources(args: Namespace) -> PassphraseSources:
    return PassphraseSources(_path(args.passphrase_file), ask=ask_passphrase if sys.stdin.isatty() else None)


def ask_passphrase(prompt: str) -> str:
    """Without an echo; a person who gives up ends the command."""
    try:
        return getpass.getpass(prompt)
    except EOFError:
        raise KeyboardInterrupt from None  # the person at the terminal gave up


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


_CHANGES: Mapping[str, Callable[[Namespace], Facts]] = {
    "init": _init,
    "sign-node": _sign_node,
    "renew-node": _renew_node,
    "rotate-node": _rotate_node,
    "rotate-owner": _rotate_owner,
    "revoke-owner": _revoke_owner,
    "revoke-node": _revoke_node,
    "add": lambda args: trust_commands.trust_owner(choose_home(args.home), args.owner_id, args.label),
    "remove": lambda args: trust_commands.distrust_owner(choose_home(args.home), args.owner_id),
    "policy": lambda args: trust_commands.choose_policy(choose_home(args.home), TrustPolicy(args.policy)),
}
