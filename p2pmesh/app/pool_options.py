"""What was asked about public pools, checked once: to list one, to join the best, by which relays."""

from dataclasses import dataclass

from p2pmesh.app.option_checks import invalid
from p2pmesh.base.ids import is_mesh_id
from p2pmesh.base.limits import MAX_LISTED_CLIENTS, MAX_LISTING_NAME_BYTES
from p2pmesh.wire.schema import as_line, is_line

MAX_AVOIDED = 256

DEFAULT_RELAYS = (
    "wss://relay.damus.io",
    "wss://nos.lol",
    "wss://relay.nostr.band",
    "wss://nostr.land",
    "wss://nostr.wine",
)
"""Those that Mesh LLM lists its meshes at. None is contacted without --publish or --auto."""


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """``is_publishing``: found a public pool and list it; ``is_searching``: join the best one that is listed first.

    ``name`` is the pool's, of both; ``max_clients`` 0 is no cap; it caps what this node serves to others, too.
    ``relays`` empty means ``DEFAULT_RELAYS``. Pools of the meshes ``avoided`` are not joined.
    """

    is_publishing: bool = False
    is_searching: bool = False
    name: str = ""
    region: str | None = None
    max_clients: int = 0
    relays: tuple[str, ...] = ()
    avoided: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        _check_label("--pool-name", self.name or None)
        _check_label("--region", self.region)
        if not 0 <= self.max_clients <= MAX_LISTED_CLIENTS:
            raise invalid(f"--max-clients must be 0 (no cap) to {MAX_LISTED_CLIENTS}, not {self.max_clients}")
        wrong = sorted(text for text in self.avoided if not is_mesh_id(text))
        if wrong or len(self.avoided) > MAX_AVOIDED:
            shown = as_line(wrong[0], 80) if wrong else f"{len(self.avoided)} of them"
            raise invalid(f"--avoid-pool takes up to {MAX_AVOIDED} ids of 32 hex digits, not {shown!r}")

    @property
    def is_asked_for(self) -> bool:
        """Whether this node has to do with public pools at all."""
        return self.is_publishing or self.is_searching

    @property
    def relays_to_use(self) -> tuple[str, ...]:
        """Relays as typed, or the default ones."""
        return self.relays or DEFAULT_RELAYS


def check_pool_choice(choice: PoolChoice, *, is_joining: bool) -> None:
    """Refuses what contradicts how the node joins: by an invite, or back into the mesh of old."""
    if choice.is_searching and is_joining:
        raise invalid("--auto looks for a pool to join; leave it away, or --join and --rejoin")


def _check_label(option: str, text: str | None) -> None:
    if text is None:
        return
    if not text or not is_line(text) or not text.isprintable() or len(text.encode()) > MAX_LISTING_NAME_BYTES:
        raise invalid(f"{option} must be 1 to {MAX_LISTING_NAME_BYTES} bytes of printable text")
