"""The command line's names. Scripts rely on them: what is here stays, new ones may join.

Only syntax is checked here (exit 2); meaning is checked by the records of ``app.config``.
"""

import argparse
import os
import sys
from functools import cache
from pathlib import Path

from p2pmesh import __version__
from p2pmesh.app.answer_options import read_guardrails, read_mixture
from p2pmesh.app.chaos_options import CHAOS_FAULTS, ChaosOptions
from p2pmesh.app.config import (
    DEFAULT_API_PORT,
    DEFAULT_CACHE_QUOTA_BYTES,
    DEFAULT_CONSOLE_PORT,
    PASSPHRASE_VARIABLE,
    ChatOptions,
    Discovery,
    LogFormat,
    OnDemand,
    UpOptions,
    choose_home,
)
from p2pmesh.app.invite_text import read_invite_text
from p2pmesh.app.relay_options import read_reach
from p2pmesh.base.limits import DEFAULT_CONTEXT_TOKENS, DEFAULT_LANES, DEFAULT_REPLAN_AFTER_S
from p2pmesh.base.quantities import parse_size_bytes
from p2pmesh.cli.actions import STATE_HOME, Commands, OneLineParser, OptionGroup, add_home, finite_number
from p2pmesh.cli.auth_parser import add_auth
from p2pmesh.cli.bench_parser import add_bench
from p2pmesh.cli.certify_parser import add_certify
from p2pmesh.cli.config_parser import add_config
from p2pmesh.cli.discover_parser import add_discover
from p2pmesh.cli.doctor_parser import add_doctor
from p2pmesh.cli.invite_parser import add_invite, add_joining, add_peer, requirement_options
from p2pmesh.cli.key_parser import add_access, add_key
from p2pmesh.cli.models_parser import add_hub_options, add_models
from p2pmesh.cli.package_parser import add_package
from p2pmesh.cli.plan_parser import add_plan
from p2pmesh.cli.pool_parser import add_pool, pool_choice
from p2pmesh.cli.sharing_parser import add_sharing
from p2pmesh.core.artifact_policy import ArtifactTransfer
from p2pmesh.core.guardrails.policy import GuardrailMode
from p2pmesh.core.ownership import TrustPolicy
from p2pmesh.core.relaying import RelayService
from p2pmesh.wire.dtype import DTYPE_LABELS, WireDtype, dtype_of_label


@cache
def build_parser() -> argparse.ArgumentParser:
    """The parser; ``command`` in its result names what to run. Made once: that takes a good part of a start."""
    parser: argparse.ArgumentParser = OneLineParser(
        prog="p2pmesh",
        description="Machines that people can spare, as one OpenAI-compatible endpoint.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"p2pmesh {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_up(commands)
    _add_chat(commands)
    _add_status(commands)
    add_models(commands)
    add_package(commands)
    add_auth(commands)
    add_invite(commands)
    add_peer(commands)
    add_key(commands)
    add_config(commands)
    add_certify(commands)
    add_plan(commands)
    add_discover(commands)
    add_doctor(commands)
    _add_gpus(commands)
    add_bench(commands)
    _add_chaos(commands)
    _add_simulate(commands)
    return parser


def _add_command(commands: Commands, name: str, summary: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    add_home(parser, STATE_HOME)
    return parser


def _add_up(commands: Commands) -> None:
    up = _add_command(commands, "up", "Run a node: serve models, join others, answer /v1.")
    up.add_argument(
        "--config", metavar="FILE", help="settings (default: config.toml of the home); what is typed counts before it"
    )
    formats = [item.value for item in LogFormat]
    help_text = "events as sentences, or one JSON object a line (default: %(default)s)"
    up.add_argument("--log-format", choices=formats, default=LogFormat.PRETTY.value, help=help_text)
    up.add_argument("--trace-gossip", action="store_true", help="tell of each gossip message, for measurements")
    _add_serving(up.add_argument_group("models and where they run"))
    mesh = up.add_argument_group("the mesh")
    add_joining(mesh)
    mesh.add_argument("--name", help="how this node is called in the status of others")
    add_pool(up.add_argument_group("public pools"))
    _add_api(up.add_argument_group("API and console"))
    _add_network(up.add_argument_group("network"))
    _add_giving(up.add_argument_group("what this machine gives"))
    _add_files(up.add_argument_group("model files"))
    _add_owner(up.add_argument_group("owners and trust"))


def _add_serving(group: OptionGroup) -> None:
    add = group.add_argument
    add("--model", metavar="REF", action="append", default=[], help="GGUF file, model name, org/repo:QUANT; repeatable")
    add("--demo", action="store_true", help="serve the small model that pip installed")
    add("--split", metavar="auto|N", type=_split, default=None, help="stages: as few as fit (auto), or exactly N")
    add("--cuts", metavar="L1,L2,…", type=_cuts, default=(), help="first layers of the stages after the first")
    add(
        "--ctx-size",
        type=int,
        metavar="N",
        default=DEFAULT_CONTEXT_TOKENS,
        help="context length in tokens of each request (default: %(default)s)",
    )
    add("--lanes", type=int, metavar="N", default=DEFAULT_LANES, help="requests at a time (default: %(default)s)")
    add(
        "--wire-dtype",
        choices=DTYPE_LABELS,
        default=WireDtype.F32.label,
        help="of activations between peers (default: %(default)s)",
    )
    modes = [item.value for item in OnDemand]
    help_text = "load models of the home when they are asked for (auto: where no --model is given)"
    add("--on-demand", choices=modes, default=OnDemand.AUTO.value, help=help_text)
    help_text = "unload a model so long after its last request (default: never)"
    add("--idle-unload", metavar="SECONDS", type=finite_number, help=help_text)
    help_text = "move a model once another placement was clearly better for so long; 0: never (default: %(default)g)"
    add("--replan-after", metavar="SECONDS", type=finite_number, default=DEFAULT_REPLAN_AFTER_S, help=help_text)


def _add_api(group: OptionGroup) -> None:
    add = group.add_argument
    help_text = "port of /v1; 0 picks a free one (default: %(default)s)"
    add("--port", type=int, metavar="PORT", default=DEFAULT_API_PORT, help=help_text)
    add_access(group)
    help_text = "port of the console; 0 picks a free one (default: %(default)s)"
    add("--console-port", type=int, metavar="PORT", default=DEFAULT_CONSOLE_PORT, help=help_text)
    add(
        "--mesh-option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a limit or a time of the model mesh; repeatable",
    )
    modes = [item.value for item in GuardrailMode]
    help_text = "mend answers of small models (default: %(default)s)"
    add("--guardrails", choices=modes, default=GuardrailMode.OFF.value, help=help_text)
    add("--guardrail-option", metavar="NAME=VALUE", action="append", default=[], help="a limit of theirs; repeatable")


def _add_network(group: OptionGroup) -> None:
    add = group.add_argument
    help_text = "for peers (default: every interface); repeatable"
    add("--listen", metavar="MULTIADDR", action="append", default=[], help=help_text)
    add("--announce", metavar="MULTIADDR", action="append", default=[], help="what peers dial, if not that; repeatable")
    ways = [item.value for item in Discovery]
    help_text = "where others are looked for: public relays, the local network (mdns), nowhere (default: %(default)s)"
    add("--discovery", choices=ways, default=Discovery.NOSTR.value, help=help_text)
    add(
        "--relay",
        metavar="MULTIADDR",
        action="append",
        default=[],
        help="by which this node is reached behind a NAT; repeatable",
    )
    services = [item.value for item in RelayService]
    add(
        "--relay-service",
        choices=services,
        default=RelayService.AUTO.value,
        help="relay for peers behind NATs (default: %(default)s)",
    )
    add(
        "--relay-limit", metavar="NAME=VALUE", action="append", default=[], help="a bound of what it relays; repeatable"
    )


def _add_giving(group: OptionGroup) -> None:
    add = group.add_argument
    add("--max-memory", metavar="SIZE", type=_size, help="memory for stages, such as 8GiB; 0 holds none")
    add("--device", metavar="NAME,NAME", type=_names, default=(), help="what stages run on (default: GPUs, if any)")
    add("--gpu-layers", type=int, metavar="N", help="of each stage, so many go to the devices (default: all)")
    add("--max-layers", type=int, metavar="N", help="at most so many layers in one stage here")
    add("--exclude-model", metavar="REF", action="append", default=[], help="no stage of it here; repeatable")
    add_sharing(group, _size)


def _add_files(group: OptionGroup) -> None:
    add_hub_options(group)
    modes = [item.value for item in ArtifactTransfer]
    help_text = "whom model files go to and come from (default: open; in a public pool: off)"
    group.add_argument("--artifact-transfer", choices=modes, help=help_text)
    help_text = "disk for stage files (default: 64GiB)"
    group.add_argument("--cache-quota", metavar="SIZE", type=_size, default=DEFAULT_CACHE_QUOTA_BYTES, help=help_text)


def _add_owner(group: OptionGroup) -> None:
    add = group.add_argument
    add("--trust-policy", choices=[item.value for item in TrustPolicy], help="what owners count for, in this run")
    add("--owner-key", metavar="FILE", help="the owner key that renews this node's claim (default: in the home)")
    add("--passphrase-file", metavar="FILE", help=f"its passphrase (else ${PASSPHRASE_VARIABLE}, or the keychain)")


def _add_chat(commands: Commands) -> None:
    chat = _add_command(commands, "chat", "Ask a running node and print the answer as it arises.")
    chat.add_argument("model", metavar="MODEL", help="as /v1/models lists it, or auto")
    chat.add_argument("prompt", metavar="PROMPT", help="what to ask")
    chat.add_argument("--system", metavar="TEXT", help="system message")
    chat.add_argument("--max-tokens", type=int, metavar="N", help="end the answer after so many")
    chat.add_argument("--temperature", type=finite_number, metavar="T", help="0 always takes the likeliest token")
    chat.add_argument("--seed", type=int, metavar="N", help="equal seeds, equal answers")


def _add_status(commands: Commands) -> None:
    status = _add_command(commands, "status", "Show what a running node is doing.")
    status.add_argument("--json", action="store_true", help="as JSON")


def _add_gpus(commands: Commands) -> None:
    summary = "List what llama.cpp can run on here, and what a node would offer."
    gpus = commands.add_parser("gpus", help=summary, description=summary, allow_abbrev=False)
    gpus.add_argument("--measure", action="store_true", help="also how fast the memory is; takes half a second")
    gpus.add_argument("--json", action="store_true", help="as JSON")
    add_home(gpus, STATE_HOME)


_CHAOS_ENDS = (
    "Each answer is compared with an undisturbed one. The exit code is 0 if all are identical and no run was replaced "
    "because a stage was slow, otherwise 1; 130 after Ctrl-C, with a report of what came until then. Memory is told "
    "from five minutes on, and changes no exit code. No process and no file of the nodes is left."
)


def _add_chaos(commands: Commands) -> None:
    summary = "Serve a model on local nodes, make stages and links fail, and tell what was lost."
    chaos = _add_command(commands, "chaos", summary)
    chaos.epilog = _CHAOS_ENDS
    add = chaos.add_argument
    add("--model", metavar="REF", help="default: the demo model")
    add("--stages", type=int, metavar="N", default=3, help="default: %(default)s")
    add("--spares", type=int, metavar="N", default=1, help="peers beside those of the stages (default: %(default)s)")
    add("--requests", type=int, metavar="N", default=50, help="default: %(default)s")
    add("--tokens", type=int, metavar="N", default=64, help="of each answer (default: %(default)s)")
    add("--parallel", type=int, metavar="N", default=2, help="requests at a time (default: %(default)s)")
    add("--every", type=finite_number, metavar="S", default=10.0, help="seconds between faults (default: %(default)s)")
    add(
        "--faults",
        type=_names,
        metavar="F,F",
        default=CHAOS_FAULTS,
        help=f"of {', '.join(CHAOS_FAULTS)} (default: all)",
    )
    add("--seed", type=int, metavar="S", default=0, help="equal seeds, equal faults (default: %(default)s)")
    add("--matrix", action="store_true", help="one fault a request, at each stage and position, greedy and sampled")
    add("--peer-memory", metavar="SIZE", type=_size, default="4GiB", help="of each peer (default: %(default)s)")
    add("--cases", type=int, metavar="N", help="of the matrix, chosen by the seed (default: all)")
    add("--positions", type=int, metavar="N", default=20, help="of the matrix (default: %(default)s)")
    add("--json", action="store_true", help="as JSON")


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _add_simulate(commands: Commands) -> None:
    summary = "Run the machines of many peers in simulated time, with faults."
    simulate = commands.add_parser("simulate", help=summary, description=summary, allow_abbrev=False)
    add = simulate.add_argument
    add("scenario", metavar="SCENARIO", nargs="?", default="calm", help="a name such as ten-thousand, or a .toml file")
    add("--peers", type=int, metavar="N", help="simulated peers (default: what the scenario says)")
    add("--seed", type=int, metavar="S", default=0, help="equal seeds, equal runs (default: %(default)s)")
    add("--record", type=Path, metavar="FILE", help="write what one peer's membership machine was told")
    add("--record-peer", type=int, metavar="K", default=1, help="of the peer of this number (default: %(default)s)")
    add("--replay", type=Path, metavar="FILE", help="run such a file instead, and print the effects")
    add("--json", action="store_true", help="as JSON")


def _cuts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of layers; write for example 10,20") from None


def _split(text: str) -> int | None:
    if text == "auto":
        return None
    if text.isascii() and text.isdecimal():
        return int(text[:6])
    raise argparse.ArgumentTypeError(f"{text!r} is neither 'auto' nor a number of stages")


def _size(text: str) -> int:
    try:
        return parse_size_bytes(text)
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def up_options(args: argparse.Namespace) -> UpOptions:
    """The options of ``up``; ``ConfigError`` where a value makes no sense."""
    invite = read_invite_text(args.join, args.join_file, os.environ, sys.stdin)
    return UpOptions(
        home=choose_home(args.home),
        models=tuple(args.model),
        is_demo=args.demo,
        split=args.split,
        invite=None if args.rejoin else invite,
        name=args.name,
        port=args.port,
        console_port=args.console_port,
        listen=tuple(args.listen),
        announce=tuple(args.announce),
        context_tokens=args.ctx_size,
        max_memory_bytes=args.max_memory,
        log_format=LogFormat(args.log_format),
        wire_dtype=dtype_of_label(args.wire_dtype),
        lanes=args.lanes,
        is_tracing_gossip=args.trace_gossip,
        cuts=args.cuts,
        is_rejoining=args.rejoin,
        requirements=requirement_options(args),
        trust_policy=None if args.trust_policy is None else TrustPolicy(args.trust_policy),
        owner_key=args.owner_key,
        passphrase_file=args.passphrase_file,
        hub_endpoint=args.hub_endpoint,
        is_offline=args.offline,
        artifact_transfer=None if args.artifact_transfer is None else ArtifactTransfer(args.artifact_transfer),
        cache_quota_bytes=args.cache_quota,
        devices=args.device,
        gpu_layers=args.gpu_layers,
        max_layers=args.max_layers,
        excluded_models=tuple(args.exclude_model),
        on_demand=OnDemand(args.on_demand),
        idle_unload_s=args.idle_unload,
        host=args.host,
        allowed_hosts=tuple(args.allow_host),
        cors_origins=tuple(args.cors_origin),
        mixture=read_mixture(args.mesh_option),
        guardrails=read_guardrails(args.guardrails, args.guardrail_option),
        pool=pool_choice(args),
        reach=read_reach(args.relay, args.relay_service, args.relay_limit),
        replan_after_s=args.replan_after,
        discovery=Discovery(args.discovery),
        share_hours=tuple(args.share_hours),
        is_only_idle=args.idle_only,
        idle_after_s=args.idle_after,
        leave_within_s=args.leave_within,
        upload_bytes_per_s=args.upload_limit,
        download_bytes_per_s=args.download_limit,
        niceness=args.nice,
    )


def chat_options(args: argparse.Namespace) -> ChatOptions:
    """The options of ``chat``."""
    return ChatOptions(
        home=choose_home(args.home),
        model=args.model,
        prompt=args.prompt,
        system=args.system,
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        seed=args.seed,
    )


def chaos_options(args: argparse.Namespace) -> ChaosOptions:
    """The options of ``chaos``."""
    return ChaosOptions(
        choose_home(args.home), args.model, args.stages, args.spares, args.requests, args.tokens, args.parallel,
        args.every, args.faults, args.seed, args.matrix, args.positions, args.json, args.peer_memory, args.cases,
    )  # fmt: skip
