"""The command ``p2pmesh``: parse, run, turn every ending into one line and an exit code.

Commands live in ``p2pmesh.app`` and are imported when they are run, so that ``--help`` stays fast.
"""

import errno
import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from p2pmesh.api.errors import error_of
from p2pmesh.app import events
from p2pmesh.app.config import LogFormat, UpOptions, check_typed_relays, choose_home
from p2pmesh.app.config_file import ConfigMistakes
from p2pmesh.app.invite_text import invite_origin
from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError, Refused
from p2pmesh.cli.auth_parser import AUTH_ACTIONS
from p2pmesh.cli.benches import BENCHES
from p2pmesh.cli.certify import run_certify_families, run_certify_wire
from p2pmesh.cli.config_parser import CONFIG_ACTIONS
from p2pmesh.cli.configs import FileOfUp, run_config
from p2pmesh.cli.exit_codes import BROKEN_PIPE, EXIT_CODES, FAILED, INTERRUPTED, OK
from p2pmesh.cli.invite_parser import INVITE_ACTIONS, PEER_ACTIONS
from p2pmesh.cli.key_parser import KEY_ACTIONS
from p2pmesh.cli.models_parser import MODELS_ACTIONS
from p2pmesh.cli.origins import name_home, name_invite
from p2pmesh.cli.output import (
    EventPrinter,
    JsonPrinter,
    PrettyPrinter,
    describe_value,
    printable,
)
from p2pmesh.cli.package_parser import PACKAGE_ACTIONS
from p2pmesh.cli.parser import (
    build_parser,
    chaos_options,
    chat_options,
    up_options,
)

_OF_PATHS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)


def main(argv: Sequence[str] | None = None, commands: "Commands | None" = None) -> int:
    """Runs one command, of ``commands`` where they are not the usual ones; the exit code is 0, or one of
    ``cli.exit_codes``."""
    try:
        args = build_parser().parse_args(argv)
    except SystemExit as ending:  # argparse has printed help, the version, or what is wrong
        _tell_usage(getattr(ending, "__notes__", ()), sys.argv[1:] if argv is None else argv)
        return ending.code if isinstance(ending.code, int) else OK
    try:
        if args.command == "up":
            args.file = FileOfUp(args, sys.argv[1:] if argv is None else argv)
        return (commands or _COMMANDS)[_command_name(args)](args)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return BROKEN_PIPE
    except BaseExceptionGroup as raised:
        if raised.subgroup(KeyboardInterrupt) is not None:
            return INTERRUPTED
        return _report(raised, args)
    except (P2PMeshError, OSError) as error:
        return _report(error, args)
    finally:
        _flush_stdout()


def _tell_usage(lines: Sequence[str], argv: Sequence[str]) -> None:
    """As an event where ``up`` was to print events: arguments that cannot be parsed say so themselves."""
    name, wanted = "--log-format", LogFormat.JSON.value
    if list(argv[:1]) == ["up"] and (f"{name}={wanted}" in argv or (name, wanted) in pairwise(argv)):
        for line in lines:
            JsonPrinter(sys.stdout).emit(events.error(ConfigError(ErrorCode.CONFIG_INVALID, line)))


def _about_place(error: OSError) -> P2PMeshError | None:
    """A full disk, also one under stdout, or a path that cannot be used, in words; None for what is a bug."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        place = "" if error.filename is None else f" for {error.filename}"
        text = f"the disk is full{place}: free some space, or write elsewhere"
        return Refused(ErrorCode.DISK_FULL, text)
    if error.filename is not None and error.errno in _OF_PATHS:
        text = f"{error.filename} cannot be used: {error.strerror}; check its path and its owner"
        return ConfigError(ErrorCode.CONFIG_INVALID, text)
    return None


def _command_name(args: Namespace) -> str:
    action = getattr(args, "action", None)
    return f"{args.command} {action}" if action else str(args.command)


def _report(raised: BaseException, args: Namespace) -> int:
    """One line on stderr, or one for each mistake of a file; and an event on stdout where a program reads that.

    Raises again what is a bug.
    """
    error = _about_place(raised) if isinstance(raised, OSError) else None
    if error is None and isinstance(raised, Exception):
        error = error_of(raised)
    if error is None:
        raise raised
    _name_origins(error, args)
    if isinstance(error, ConfigMistakes):
        told = tuple(error.told())
    else:
        told = ((error.message, error.excerpt if isinstance(error, ConfigError) else ()),)
    for line, pointers in told:
        sys.stderr.write(f"p2pmesh: {printable(line)}\n" + "".join(f"  {printable(one)}\n" for one in pointers))
    if getattr(args, "log_format", None) == LogFormat.JSON.value:
        JsonPrinter(sys.stdout).emit(events.error(error))
    return EXIT_CODES[error.code]


def _name_origins(error: P2PMeshError, args: Namespace) -> None:
    name_home(error, args, os.environ)
    if hasattr(args, "invite_origin"):
        name_invite(error, args.invite_origin)
    if isinstance(getattr(args, "file", None), FileOfUp):
        args.file.name_in(error)


def _flush_stdout() -> None:
    """Keeps the interpreter from failing once more, with a code of its own, when it flushes stdout at exit."""
    try:
        sys.stdout.flush()
        return
    except ValueError:
        return  # closed
    except OSError:
        pass
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return  # stdout is no file: nothing will be flushed into a pipe


def _up(args: Namespace) -> int:
    file: FileOfUp = args.file
    merged = file.merged()
    args.invite_origin = invite_origin(merged.join, merged.join_file, os.environ)
    options = up_options(merged)
    _refuse_idle_pool_options(args, options)
    from p2pmesh.app.up import run_up

    is_json = options.log_format is LogFormat.JSON
    printer: EventPrinter = JsonPrinter(sys.stdout) if is_json else PrettyPrinter(sys.stdout, sys.stderr)
    return run_up(options, printer.emit, file=file)


_OF_POOLS = ("pool_name", "region", "avoid_pool", "nostr_relay")


def _refuse_idle_pool_options(args: Namespace, options: UpOptions) -> None:
    """Only what was typed: a file may well name a pool for times when it is asked for."""
    check_typed_relays(args.nostr_relay, options.discovery)
    idle = [f"--{name.replace('_', '-')}" for name in _OF_POOLS if getattr(args, name)]
    if idle and not options.pool.is_asked_for:
        text = f"{', '.join(idle)}: give --publish or --auto with it, for only public pools have it"
        raise ConfigError(ErrorCode.CONFIG_INVALID, text)


def _chat(args: Namespace) -> int:
    from p2pmesh.app.client import run_chat

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def tell(line: str) -> None:
        begin = "\n" if sys.stdout.isatty() and sys.stderr.isatty() else ""  # the answer stands in the middle of a line
        sys.stderr.write(f"{begin}{line}\n")
        sys.stderr.flush()

    run_chat(chat_options(args), write, tell)
    write("\n")
    return OK


def _status(args: Namespace) -> int:
    from p2pmesh.app.client import fetch_status

    _print_object(fetch_status(choose_home(args.home)), is_json=args.json)
    return OK


def _models(args: Namespace) -> int:
    from p2pmesh.cli.models import run_models

    return run_models(args)


def _key(args: Namespace) -> int:
    from p2pmesh.cli.keys import run_key

    return run_key(args)


def _auth(args: Namespace) -> int:
    from p2pmesh.cli.auth import run_auth

    facts, exit_code = run_auth(args)
    _print_object(facts, is_json=args.json)
    return exit_code


def _package(args: Namespace) -> int:
    from p2pmesh.cli.packages import run_package

    facts, exit_code = run_package(args)
    _print_object(facts, is_json=args.json)
    return exit_code


def _invite(args: Namespace) -> int:
    from p2pmesh.cli.invites import run_invite

    return run_invite(args)


def _peer(args: Namespace) -> int:
    from p2pmesh.cli.invites import run_peer

    return run_peer(args)


def _plan(args: Namespace) -> int:
    from p2pmesh.cli.plan import run_plan

    return run_plan(args)


def _doctor_network(args: Namespace) -> int:
    from p2pmesh.cli.doctor import run

    return run(args)


def _discover(args: Namespace) -> int:
    from p2pmesh.cli.discover import run

    return run(args)


def _gpus(args: Namespace) -> int:
    from p2pmesh.cli.gpus import run_gpus

    return run_gpus(args)


def _chaos(args: Namespace) -> int:
    options = chaos_options(args)
    from p2pmesh.app.chaos import run_chaos

    return run_chaos(options, sys.stdout)


def _simulate(args: Namespace) -> int:
    from p2pmesh.app import simulate

    if args.replay is not None:
        replayed = simulate.replay_file(args.replay)
        _print(json.dumps(replayed, indent=2) if args.json else simulate.describe_replay(replayed))
        return OK
    record = None if args.record is None else (args.record_peer, args.record)
    report = simulate.run_simulation(simulate.SimulateOptions(args.scenario, args.peers, args.seed, record))
    _print(json.dumps(report, indent=2) if args.json else simulate.describe_simulation(report))
    return FAILED if report["violations"] else OK


def _print_object(value: Mapping[str, Any], *, is_json: bool) -> None:
    _print(json.dumps(value, indent=2) if is_json else "\n".join(describe_value(value)))


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


Commands = Mapping[str, Callable[[Namespace], int]]

_COMMANDS: Commands = {
    "up": _up,
    "chat": _chat,
    "status": _status,
    **dict.fromkeys((f"models {action}" for action in MODELS_ACTIONS), _models),
    **dict.fromkeys((f"package {action}" for action in PACKAGE_ACTIONS), _package),
    **dict.fromkeys((f"auth {action}" for action in AUTH_ACTIONS), _auth),
    **dict.fromkeys((f"invite {action}" for action in INVITE_ACTIONS), _invite),
    **dict.fromkeys((f"peer {action}" for action in PEER_ACTIONS), _peer),
    **dict.fromkeys((f"key {action}" for action in KEY_ACTIONS), _key),
    **dict.fromkeys((f"config {action}" for action in CONFIG_ACTIONS), run_config),
    "certify wire": run_certify_wire,
    "certify families": run_certify_families,
    "plan": _plan,
    "gpus": _gpus,
    "discover": _discover,
    "doctor network": _doctor_network,
    **BENCHES,
    "chaos": _chaos,
    "simulate": _simulate,
}
