"""``p2pmesh bench``: from arguments to the benchmarks of ``app``, which are imported when they are run."""

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path

from p2pmesh.app.bench_options import (
    BenchApiOptions,
    BenchDecodeOptions,
    BenchDiscoveryOptions,
    BenchOverlayOptions,
    BenchPlannerOptions,
    BenchPrefixOptions,
    BenchStreamsOptions,
    BenchTpotOptions,
)
from p2pmesh.app.config import choose_home


def decode_options(args: Namespace) -> BenchDecodeOptions:
    """The options of ``bench decode``."""
    return BenchDecodeOptions(
        home=choose_home(args.home),
        model=args.model,
        peers=args.peers,
        prompt_tokens=args.prompt_tokens,
        decode_tokens=args.tokens,
        is_json=args.json,
    )


def _decode(args: Namespace) -> int:
    options = decode_options(args)
    from p2pmesh.app.bench import run_decode

    return run_decode(options, sys.stdout)


def _prefix(args: Namespace) -> int:
    home = choose_home(args.home)
    options = BenchPrefixOptions(home, args.model, args.stages, args.prefix_tokens, args.rounds, args.json)
    from p2pmesh.app.bench_prefix import run_prefix

    return run_prefix(options, sys.stdout)


def _tpot(args: Namespace) -> int:
    options = BenchTpotOptions(
        choose_home(args.home), args.model, args.stages, args.delays, args.prompt_tokens, args.tokens, args.requests,
        args.json,
    )  # fmt: skip
    from p2pmesh.app.bench_tpot import run_tpot

    return run_tpot(options, sys.stdout)


def _streams(args: Namespace) -> int:
    options = BenchStreamsOptions(
        choose_home(args.home), args.model, args.streams, args.stages, args.lanes, args.prompt_tokens, args.tokens,
        args.ctx_size, Path(args.llama_server) if args.llama_server else None, args.rounds, args.json,
    )  # fmt: skip
    from p2pmesh.app.bench_streams import run_streams

    return run_streams(options, sys.stdout)


def _api(args: Namespace) -> int:
    options = BenchApiOptions(
        choose_home(args.home), args.model, args.stages, args.prompt_tokens, args.tokens, args.rounds, args.json
    )
    from p2pmesh.app.bench_api import run_api

    return run_api(options, sys.stdout)


def _codecs(args: Namespace) -> int:
    from p2pmesh.app.bench_codecs import run_codecs

    return run_codecs(sys.stdout, is_json=args.json)


def _planner(args: Namespace) -> int:
    options = BenchPlannerOptions(args.peers, args.layers)
    from p2pmesh.app.bench_planner import run_planner

    return run_planner(options.peers, options.layers, sys.stdout, is_json=args.json)


def _memory(args: Namespace) -> int:
    home = choose_home(args.home)
    from p2pmesh.app.bench_memory import run_memory

    return run_memory(home, tuple(args.model), sys.stdout, is_json=args.json)


def _overlay(args: Namespace) -> int:
    options = BenchOverlayOptions(args.peers, args.minutes, args.json)
    from p2pmesh.app.bench_overlay import run_overlay

    return run_overlay(options, sys.stdout)


def _discovery(args: Namespace) -> int:
    options = BenchDiscoveryOptions(args.pools, args.dead, args.rounds, args.json)
    from p2pmesh.app.bench_discovery import run_discovery

    return run_discovery(options, sys.stdout)


BENCHES: Mapping[str, Callable[[Namespace], int]] = {
    "bench decode": _decode,
    "bench prefix": _prefix,
    "bench tpot": _tpot,
    "bench api": _api,
    "bench streams": _streams,
    "bench codecs": _codecs,
    "bench memory": _memory,
    "bench overlay": _overlay,
    "bench discovery": _discovery,
    "bench planner": _planner,
}
