"""Names and syntax of ``p2pmesh bench``; part of ``cli.parser``."""

import argparse

from p2pmesh.cli.actions import STATE_HOME, Commands, add_home

_SHOWN = "default: %(default)s"


def add_bench(commands: Commands) -> None:
    """Adds ``bench`` and its actions to the commands."""
    bench = commands.add_parser("bench", help="Measurements on this machine.", allow_abbrev=False)
    actions = bench.add_subparsers(dest="action", metavar="ACTION", required=True)
    for parser in (*_of_answers(actions), *_of_parts(actions), *_of_overlays(actions)):
        parser.add_argument("--json", action="store_true", help="as JSON")


def _of_answers(actions: Commands) -> tuple[argparse.ArgumentParser, ...]:
    """What a client waits for, with a model of the home."""
    return (_decode(actions), _tpot(actions), _streams(actions), _api(actions), _prefix(actions))


def _decode(actions: Commands) -> argparse.ArgumentParser:
    decode = _with_model(actions, "decode", "Tokens per second: plain loop, one engine, and peers.")
    decode.add_argument("--peers", type=_counts, metavar="N,N", default=(1, 2, 3), help="default: 1,2,3")
    _add_number(decode, "--prompt-tokens", 64)
    decode.add_argument("--tokens", type=int, metavar="N", default=128, help="tokens to decode")
    return decode


def _tpot(actions: Commands) -> argparse.ArgumentParser:
    tpot = _with_model(actions, "tpot", "Time per token behind slow links: predicted, and then measured.")
    tpot.add_argument("--stages", type=_counts, metavar="N,N", default=(1, 2, 3, 4), help="default: 1,2,3,4")
    help_text = "of a hop (default: 0,10,40)"
    tpot.add_argument("--delays", type=_counts, metavar="MS,MS", default=(0, 10, 40), help=help_text)
    _add_number(tpot, "--prompt-tokens", 64)
    _add_number(tpot, "--tokens", 96, "of each answer")
    _add_number(tpot, "--requests", 3, "that are timed")
    return tpot


def _streams(actions: Commands) -> argparse.ArgumentParser:
    summary = "Many clients at once on one split model: do all finish, and evenly?"
    streams = _with_model(actions, "streams", summary)
    streams.add_argument("--streams", type=_counts, metavar="N,N", default=(16, 64), help="default: 16,64")
    _add_number(streams, "--stages", 2)
    _add_number(streams, "--lanes", 16)
    _add_number(streams, "--prompt-tokens", 64)
    _add_number(streams, "--tokens", 64, "of each answer")
    _add_number(streams, "--ctx-size", 512, "of each lane")
    streams.add_argument("--llama-server", metavar="PROGRAM", help="llama.cpp's server, asked the same side by side")
    _add_number(streams, "--rounds", 1, "of each number")
    return streams


def _api(actions: Commands) -> argparse.ArgumentParser:
    api = _with_model(actions, "api", "CPU time of a streamed token: the bare driver, its API, and another peer's.")
    _add_number(api, "--stages", 1)
    _add_number(api, "--prompt-tokens", 64)
    _add_number(api, "--tokens", 256, "of each answer")
    _add_number(api, "--rounds", 5, "that are counted")
    return api


def _prefix(actions: Commands) -> argparse.ArgumentParser:
    summary = "Time to the first token of a new prompt, and of one that begins like it."
    prefix = _with_model(actions, "prefix", summary)
    _add_number(prefix, "--stages", 2)
    _add_number(prefix, "--prefix-tokens", 1000)
    _add_number(prefix, "--rounds", 5, "that are timed")
    return prefix


def _of_parts(actions: Commands) -> tuple[argparse.ArgumentParser, ...]:
    """One part by itself."""
    codecs = _plain(actions, "codecs", "GB/s of each wire dtype on one core.")
    memory = _with_home(actions, "memory", "What stages are charged, beside what their engines take.")
    memory.add_argument("--model", metavar="REF", action="append", default=[], help="default: those that pip installed")
    planner = _plain(actions, "planner", "Milliseconds to decide one placement.")
    _add_number(planner, "--peers", 64)
    _add_number(planner, "--layers", 128)
    return codecs, memory, planner


def _of_overlays(actions: Commands) -> tuple[argparse.ArgumentParser, ...]:
    """Many nodes, without a model."""
    discovery = _plain(actions, "discovery", "Time from up --auto to being in a pool.")
    _add_number(discovery, "--pools", 20, "that are listed")
    _add_number(discovery, "--dead", 15, "of them")
    _add_number(discovery, "--rounds", 5)
    overlay = _plain(actions, "overlay", "Announcements and idle cost of many real nodes.")
    _add_number(overlay, "--peers", 30, "node processes")
    overlay.add_argument("--minutes", type=int, metavar="M", default=5, help=f"of idling ({_SHOWN})")
    return discovery, overlay


def _plain(actions: Commands, name: str, summary: str) -> argparse.ArgumentParser:
    return actions.add_parser(name, help=summary, allow_abbrev=False)


def _with_home(actions: Commands, name: str, summary: str) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    add_home(parser, STATE_HOME)
    return parser


def _with_model(actions: Commands, name: str, summary: str) -> argparse.ArgumentParser:
    parser = _with_home(actions, name, summary)
    parser.add_argument("--model", metavar="REF", help="default: the demo model")
    return parser


def _add_number(parser: argparse.ArgumentParser, option: str, default: int, meaning: str = "") -> None:
    help_text = f"{meaning} ({_SHOWN})" if meaning else _SHOWN
    parser.add_argument(option, type=int, metavar="N", default=default, help=help_text)


def _counts(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 1,2,3")
    return tuple(int(part[:6]) for part in parts)
