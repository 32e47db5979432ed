"""What a command was asked to do, checked once, as frozen records.

The only place that knows defaults of the command line and reads ``P2PMESH_HOME``. Nothing here opens a file or a
port; that a model or an invite is usable is found out by those who use them.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from p2pmesh.app.option_checks import MAX_CONTEXT_TOKENS, check_range, invalid
from p2pmesh.app.pool_options import PoolChoice, check_pool_choice
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import OwnerId, is_owner_id
from p2pmesh.base.limits import (
    DEFAULT_CONTEXT_TOKENS,
    DEFAULT_LANES,
    DEFAULT_REPLAN_AFTER_S,
    MAX_ADDRESS_BYTES,
    MAX_ADDRESSES,
    MAX_ANNOUNCED_MODELS,
    MAX_API_HOSTS,
    MAX_DECODE_BYTES_PER_S,
    MAX_EXCLUDED_MODELS,
    MAX_LANES,
    MAX_LAYERS,
    MAX_MESH_OWNERS,
    MAX_NAME_BYTES,
    MAX_STAGES,
    MAX_VERSION_BYTES,
)
from p2pmesh.base.quantities import GIB, KIB, MIB, MICROS_PER_SECOND
from p2pmesh.core.address_text import find_address_fault
from p2pmesh.core.artifact_policy import ArtifactTransfer
from p2pmesh.core.credentials import parse_version
from p2pmesh.core.guardrails.policy import GuardrailPolicy
from p2pmesh.core.mixture.roles import MixturePolicy
from p2pmesh.core.owner_wishes import OwnerWishes
from p2pmesh.core.ownership import TrustPolicy
from p2pmesh.core.relaying import ReachSettings
from p2pmesh.core.share_hours import MAX_WINDOWS, parse_share_hours
from p2pmesh.core.sharing import DEFAULT_IDLE_AFTER_S, DEFAULT_LEAVE_S, SharingRules
from p2pmesh.wire.dtype import WireDtype
from p2pmesh.wire.schema import is_line

HOME_VARIABLE = "P2PMESH_HOME"
PASSPHRASE_VARIABLE = "P2PMESH_OWNER_PASSPHRASE"
DEFAULT_API_HOST = "127.0.0.1"
DEFAULT_API_PORT = 9337
DEFAULT_CONSOLE_PORT = 3131
MIN_CONTEXT_TOKENS = 64
MAX_PORT = 65_535
MAX_DEVICES = 64
MAX_IDLE_UNLOAD_S = 2_592_000
MAX_REPLAN_AFTER_S = 86_400.0
DEFAULT_CACHE_QUOTA_BYTES = 64 * GIB
MIN_CACHE_QUOTA_BYTES = MIB
MAX_MEMORY_BYTES = 2**53
"""What announcements can carry."""
MIN_RATE_CAP_BYTES_PER_S = 256 * KIB
"""Several transfers share a cap, and a peer that reads nothing for half a minute is given up."""


class LogFormat(StrEnum):
    """How events are printed."""

    PRETTY = "pretty"
    JSON = "json"


class Discovery(StrEnum):
    """By whom peers are looked for beside those that an invite names."""

    NOSTR = "nostr"
    MDNS = "mdns"
    NONE = "none"


class OnDemand(StrEnum):
    """Whether models of the home that nobody named are loaded for requests."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class RequirementOptions:
    """What a mesh that is founded shall require of its members, as typed; empty leaves it as it is."""

    requires_owner: bool = False
    owners: tuple[OwnerId, ...] = ()
    version_min: str | None = None
    version_max: str | None = None

    def __post_init__(self) -> None:
        check_range("the number of --allow-owner", len(self.owners), 0, MAX_MESH_OWNERS)
        for owner in self.owners:
            if not is_owner_id(owner):
                raise invalid("--allow-owner takes an owner id, 64 hex digits; `p2pmesh auth status` shows yours")
        for name, version in (("--min-version", self.version_min), ("--max-version", self.version_max)):
            if version is not None and (len(version) > MAX_VERSION_BYTES or parse_version(version) is None):
                raise invalid(f"{name} {version[:40]!r} is no version; write for example 0.2.0")

    @property
    def is_empty(self) -> bool:
        """Whether nothing was typed."""
        return self == RequirementOptions()


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What ``p2pmesh up`` was asked to do.

    ``split`` is the exact number of stages, None for as few as fit; ``cuts`` are the layers where stages after the
    first begin, empty for the planner's choice. ``max_memory_bytes`` None means what the machine has, 0 a node that
    holds no stage. ``trust_policy`` None is that of the trust store, ``owner_key`` None the keystore in the home.
    ``models`` are references as typed, resolved by the model store. ``artifact_transfer`` None is the default of the
    kind of mesh. ``announce`` is what others are told to dial, where it is not what ``listen`` says. ``devices`` are
    names of devices to run on, empty for the best; ``gpu_layers`` of a stage go to them, None all. ``on_demand`` auto
    is on where no model is named; ``idle_unload_s`` None keeps what is loaded. ``/v1`` is bound to ``host`` and answers
    under ``allowed_hosts`` beside its own names, and to pages of ``cors_origins``. ``mixture`` is how several models
    answer as ``mesh``, ``guardrails`` what is mended of answers. ``reach`` is by which relays this node is reached, and
    what it gives as one. ``discovery`` says by whom pools and members are looked for beside those that an invite names.
    Stages are held at ``share_hours`` (empty: always), with ``is_only_idle`` while nobody used the machine for
    ``idle_after_s``; what runs when that ends has ``leave_within_s``. Engines give way to other
    programs by ``niceness``, None as the node does.
    """

    home: Path
    models: tuple[str, ...] = ()
    is_demo: bool = False
    split: int | None = None
    invite: str | None = None
    name: str | None = None
    port: int = DEFAULT_API_PORT
    console_port: int = DEFAULT_CONSOLE_PORT
    listen: tuple[str, ...] = ()
    announce: tuple[str, ...] = ()
    context_tokens: int = DEFAULT_CONTEXT_TOKENS
    max_memory_bytes: int | None = None
    log_format: LogFormat = LogFormat.PRETTY
    wire_dtype: WireDtype = WireDtype.F32
    lanes: int = DEFAULT_LANES
    cuts: tuple[int, ...] = ()
    trust_policy: TrustPolicy | None = None
    owner_key: str | None = None
    passphrase_file: str | None = None
    is_rejoining: bool = False
    requirements: RequirementOptions = field(default_factory=RequirementOptions)
    is_tracing_gossip: bool = False
    hub_endpoint: str | None = None
    is_offline: bool = False
    artifact_transfer: ArtifactTransfer | None = None
    cache_quota_bytes: int = DEFAULT_CACHE_QUOTA_BYTES
    devices: tuple[str, ...] = ()
    gpu_layers: int | None = None
    max_layers: int | None = None
    excluded_models: tuple[str, ...] = ()
    on_demand: OnDemand = OnDemand.AUTO
    idle_unload_s: float | None = None
    replan_after_s: float = DEFAULT_REPLAN_AFTER_S
    host: str = DEFAULT_API_HOST
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    mixture: MixturePolicy = MixturePolicy()
    guardrails: GuardrailPolicy = GuardrailPolicy()
    pool: PoolChoice = PoolChoice()
    discovery: Discovery = Discovery.NOSTR
    reach: ReachSettings = ReachSettings()
    share_hours: tuple[str, ...] = ()
    is_only_idle: bool = False
    idle_after_s: int = DEFAULT_IDLE_AFTER_S
    leave_within_s: int = DEFAULT_LEAVE_S
    upload_bytes_per_s: int | None = None
    download_bytes_per_s: int | None = None
    niceness: int | None = None

    def __post_init__(self) -> None:
        check_range("--port", self.port, 0, MAX_PORT)
        check_range("--console-port", self.console_port, 0, MAX_PORT)
        check_range("--ctx-size", self.context_tokens, MIN_CONTEXT_TOKENS, MAX_CONTEXT_TOKENS)
        check_range("--lanes", self.lanes, 1, MAX_LANES)
        check_range("the number of --model", len(self.models), 0, MAX_ANNOUNCED_MODELS)
        check_range("the number of --listen", len(self.listen), 0, MAX_ADDRESSES)
        check_range("the number of --announce", len(self.announce), 0, MAX_ADDRESSES)
        if (self.invite is not None or self.is_rejoining) and not self.requirements.is_empty:
            raise invalid("requirements are the founder's: leave them away where you join, or found a mesh of your own")
        _check_discovery(self)
        check_pool_choice(self.pool, is_joining=self.invite is not None or self.is_rejoining)
        if self.split is not None:
            check_range("--split", self.split, 1, MAX_STAGES)
        if self.cuts and self.split not in (None, len(self.cuts) + 1):
            raise invalid(f"--cuts gives {len(self.cuts) + 1} stages, --split {self.split}; leave --split away")
        if self.port == self.console_port != 0:
            raise invalid(f"--port and --console-port are both {self.port}; choose two different ones")
        _check_memory(self)
        _check_devices(self)
        _check_wishes(self)
        _check_idle_unload(self.idle_unload_s)
        _check_access(self)
        _check_replan_after(self.replan_after_s)
        _check_sharing(self)
        _check_name(self.name)
        if self.cache_quota_bytes < MIN_CACHE_QUOTA_BYTES:
            raise invalid("--cache-quota must be at least 1MiB")
        for model in self.models:
            if not model:
                raise invalid("--model is empty; give a path or a name that `p2pmesh models list` shows")
        for address in self.listen:
            check_multiaddr(address)
        for address in self.announce:
            check_multiaddr(address, "--announce", "/ip4/203.0.113.7/tcp/4001")

    @property
    def sharing(self) -> SharingRules:
        """When anything is given; raises ``ConfigError``."""
        try:
            hours = parse_share_hours(self.share_hours)
        except ValueError as error:
            raise invalid(f"--share-hours: {error}") from None
        return SharingRules(hours, self.is_only_idle, self.idle_after_s, self.leave_within_s * MICROS_PER_SECOND)

    @property
    def wishes(self) -> OwnerWishes:
        """What the owner caps."""
        return OwnerWishes(
            self.max_layers, self.excluded_models, self.upload_bytes_per_s or 0, self.download_bytes_per_s or 0,
            self.pool.max_clients or None,
        )  # fmt: skip

    @property
    def serves_on_demand(self) -> bool:
        """Whether models of the home are loaded for requests; a node that holds nothing does so only when told to."""
        is_without_model = not self.models and not self.is_demo and self.max_memory_bytes != 0
        return self.on_demand is OnDemand.ON or (self.on_demand is OnDemand.AUTO and is_without_model)


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What ``p2pmesh chat`` was asked to do; None leaves a choice to the node."""

    home: Path
    model: str
    prompt: str
    system: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, text in (("MODEL", self.model), ("PROMPT", self.prompt), ("--system", self.system or "")):
            if not _is_utf8(text):
                raise invalid(f"{name} has bytes that are no UTF-8 text; is the terminal set to UTF-8?")


def choose_home(given: str | None, environment: Mapping[str, str] | None = None) -> Path:
    """The node's home: ``--home``, else ``P2PMESH_HOME``, else ``~/.p2pmesh``; absolute, not yet created.

    An empty ``--home``, such as an unset variable of a script, is refused.
    """
    if given == "":
        raise invalid("--home is empty; give a directory, or leave --home away")
    variables = os.environ if environment is None else environment
    text = given or variables.get(HOME_VARIABLE) or "~/.p2pmesh"
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:  # no such user, or no home directory at all
        raise ConfigError(ErrorCode.HOME_UNUSABLE, f"the home {text!r} cannot be found: {error}") from None


def check_multiaddr(text: str, option: str = "--listen", example: str = "/ip4/0.0.0.0/tcp/4001") -> None:
    """Refuses a malformed multiaddr with ``ConfigError(ADDRESS_INVALID)`` that points at what is wrong."""
    fault = find_address_fault(text)
    if fault is None and _is_multiaddr(text):
        return
    shown = text[:80].encode("ascii", "backslashreplace").decode()
    where = f" at character {fault.start + 1}: {fault.reason}" if fault else ""
    message = f"{option} {shown!r} is not a multiaddr{where}; write for example {example}"
    raise ConfigError(ErrorCode.ADDRESS_INVALID, message, fault.excerpt(text) if fault else ())


def _is_multiaddr(text: str) -> bool:
    from multiaddr import Multiaddr  # here, because it would double the time that --help takes

    if not text.startswith("/") or len(text.encode("utf-8", "replace")) > MAX_ADDRESS_BYTES:
        return False
    try:
        return bool(Multiaddr(text).to_bytes())
    except Exception:  # noqa: BLE001 - the edge to a parser that lets lookup and encoding errors of any kind through
        return False


def _check_discovery(options: UpOptions) -> None:
    if options.pool.is_asked_for and options.discovery is Discovery.NONE:
        raise invalid("--discovery none looks for nobody; leave --publish and --auto away, or take mdns or nostr")


def check_typed_relays(relays: Sequence[str], discovery: Discovery) -> None:
    """Refuses relays for listings that were typed where none is asked."""
    if relays and discovery is not Discovery.NOSTR:
        raise invalid(f"--nostr-relay: with --discovery {discovery.value} no relay is asked; leave one of the two away")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # Python's way to keep bytes of the command line that are none
        return False
    return True


def _check_memory(options: UpOptions) -> None:
    if options.max_memory_bytes is not None and options.max_memory_bytes < 0:
        raise invalid("--max-memory must not be negative")
    if options.max_memory_bytes is not None and options.max_memory_bytes > MAX_MEMORY_BYTES:
        raise invalid(f"--max-memory must be at most {MAX_MEMORY_BYTES // GIB:,} GiB")


def _check_wishes(options: UpOptions) -> None:
    if options.max_layers is not None:
        check_range("--max-layers", options.max_layers, 1, MAX_LAYERS)
    check_range("the number of --exclude-model", len(options.excluded_models), 0, MAX_EXCLUDED_MODELS)
    for name in options.excluded_models:
        if not name or not is_line(name) or len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
            raise invalid(
                f"--exclude-model must be a model's name, or 12 or more digits of its digest, not {name[:40]!r}"
            )
        if name in options.models:
            raise invalid(f"--model and --exclude-model both name {name[:80]}; leave one of them away")


def _check_sharing(options: UpOptions) -> None:
    check_range("the number of --share-hours", len(options.share_hours), 0, MAX_WINDOWS)
    check_range("--idle-after", options.idle_after_s, 10, 86_400)
    check_range("--leave-within", options.leave_within_s, 1, 3600)
    _ = options.sharing
    for name, rate in (
        ("--upload-limit", options.upload_bytes_per_s),
        ("--download-limit", options.download_bytes_per_s),
    ):
        if rate is not None and not MIN_RATE_CAP_BYTES_PER_S <= rate <= MAX_DECODE_BYTES_PER_S:
            raise invalid(f"{name} must be 256KiB to 256TiB a second; a lower one would break transfers off")
    if options.niceness is not None:
        check_range("--nice", options.niceness, 0, 19)


def _check_replan_after(after_s: float) -> None:
    if not 0 <= after_s <= MAX_REPLAN_AFTER_S:
        raise invalid(f"--replan-after must be 0 (never) to {MAX_REPLAN_AFTER_S:.0f} s, not {after_s:g}")


def _check_idle_unload(idle_s: float | None) -> None:
    if idle_s is not None and not 1 <= idle_s <= MAX_IDLE_UNLOAD_S:
        raise invalid(
            f"--idle-unload must be 1 to {MAX_IDLE_UNLOAD_S} seconds, not {idle_s:g}; leave it away for never"
        )


def _check_access(options: UpOptions) -> None:
    check_range("the number of --allow-host", len(options.allowed_hosts), 0, MAX_API_HOSTS)
    check_range("the number of --cors-origin", len(options.cors_origins), 0, MAX_API_HOSTS)
    if not options.host:
        raise invalid("--host is empty; give an address of this machine, or 0.0.0.0 for all")
    for name in options.allowed_hosts:
        if not name or not is_line(name) or any(mark in name for mark in "/:@ "):
            raise invalid(f"--allow-host takes a host's name without scheme or port, not {name[:40]!r}")
    for origin in options.cors_origins:
        scheme, mark, host = origin.partition("://")
        if origin != "*" and not (scheme in ("http", "https") and mark and host and not set(host) & set("/@ ")):
            raise invalid(f"--cors-origin takes an origin such as https://chat.example, or *, not {origin[:40]!r}")


def _check_devices(options: UpOptions) -> None:
    check_range("the number of --device", len(options.devices), 0, MAX_DEVICES)
    if not all(options.devices):
        raise invalid("--device is empty, or has an empty name; `p2pmesh gpus` lists names")
    if options.gpu_layers is not None:
        check_range("--gpu-layers", options.gpu_layers, 0, MAX_LAYERS)


def _check_name(name: str | None) -> None:
    if name is None:
        return
    if not name or not name.isprintable() or len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        raise invalid(f"--name must be 1 to {MAX_NAME_BYTES} bytes of printable text")
