"""Bytes: what each message of the control plane costs on the wire, and who sent and received how many.

Records are encoded once by the very codecs, with a typical content; what libp2p puts around them is counted from its
formats and from measurements of real peers. Counted is the payload of TCP, not TCP and IP headers.

Modelled and not exact: gossip copies and advertisements are charged to every receiver alike, out as in, since what all
receive somebody sends.
"""

from array import array
from dataclasses import dataclass
from enum import IntEnum

from p2pmesh.sim.peer import MESH_ID
from p2pmesh.wire.announcement import Announcement, HeldModel, Link, ServedModel, encode_announcement, peer_hash_of
from p2pmesh.wire.membership_pass import LIFE_MS as PASS_LIFE_MS
from p2pmesh.wire.membership_pass import MembershipPass, encode_pass

FRAMING_BYTES = 12 + 18 + 3
"""One message on a stream: yamux header, noise length and tag, length prefix."""
STREAM_BYTES = 2 * (FRAMING_BYTES + 20) + 40
"""Opening a stream, each way: two rounds of multistream, window and end."""
DIAL_BYTES = 30 + 34 + 210 + 60
"""A connection, each way: multistream, half of a noise handshake with its signed key, choice of yamux."""
IDENTIFY_BYTES = STREAM_BYTES + 550
"""What both ends tell each other right after."""
GOSSIP_BYTES = 226 + FRAMING_BYTES
"""Around the data of a gossip message: author, sequence, topic, key, signature, framing."""
GOSSIP_COPIES_PER_MILLE = 2700
"""One that is new and 1.7 duplicates: 50 real peers."""
ADVERTISING_BYTES = 3 * (FRAMING_BYTES + 80 + 48)
"""A message id goes to one peer outside of the gossip mesh in each of three heartbeats: of about eight connections in a
topic few stay outside."""
PING_INTERVAL_S = 10
"""On a connection without work."""
PING_BYTES = 30
LINKS_ANNOUNCED = 10
"""One for each connection, about."""
REPORT_BYTES = 330
"""A signed report that a peer is down, or that it leaves."""
PROBE_BYTES = 120
"""A probe or its answer, with its proof."""
DHT_REQUEST_BYTES = 90
DHT_RESPONSE_BYTES = 20 * (40 + 36)
"""Twenty closer peers with an address each."""
HANDED_ANNOUNCEMENTS = 64
"""At most, in a welcome."""
KNOWN_PEER_BYTES = 2 + 8
"""One that a hello names as known."""


class Cause(IntEnum):
    """What bytes were spent on."""

    ANNOUNCEMENTS = 0
    NOTES = 1
    """Reports and farewells."""
    PROBES = 2
    PINGS = 3
    JOINING = 4
    UPKEEP = 5
    """Servers of the DHT looking their neighbourhood up."""
    RECORDS = 6
    SEARCHES = 7
    """Of models, and of neighbours by those that start or move."""


@dataclass(frozen=True, slots=True)
class WireSizes:
    """Encoded bytes of what varies."""

    announcement: tuple[int, ...]
    """By the number of models served."""
    chain: int
    """The passes that a hello or welcome shows, or that it grants with those above."""

    def gossiped(self, data_bytes: int) -> int:
        """What one gossip message costs a receiver, in and out."""
        return (data_bytes + GOSSIP_BYTES) * GOSSIP_COPIES_PER_MILLE // 1000 + ADVERTISING_BYTES


def measure_sizes(max_models: int = 4) -> WireSizes:
    """Encodes typical announcements."""
    chain = sum(len(one) for one in _chain(1_760_000_000_000))
    return WireSizes(tuple(_announcement_bytes(count) for count in range(max_models + 1)), chain)


def _announcement_bytes(models: int) -> int:
    peer_id, now_ms = "12D3KooW" + "S" * 44, 1_760_000_000_000
    addresses = ("/ip4/203.0.113.207/tcp/44001", "/ip6/2001:db8:85a3::8a2e:370:7334/tcp/44001")
    served = ServedModel("TinyLlama-1.1B-Chat-v1.0-Q4_K_M", "0" * 64, b"0" * 16, 2, 4096)
    announcement = Announcement(
        peer_id, MESH_ID, "a peer of someone", "0.1.0", now_ms, 200, now_ms, addresses, 2**34, 2**33,
        (served,) * models, issued_unix_ms=now_ms, interval_ms=624_000, shard_depth=6, is_dht_server=True,
        engine="llama.cpp cpu", lanes=4, lanes_free=3, decode_tokens_per_s_milli=15_000,
        on_disk=(HeldModel(served.name, served.digest),) * models,
        links=(Link(peer_hash_of(peer_id), 45_000, 2**24, False),) * LINKS_ANNOUNCED,
        passes=_chain(now_ms),
    )  # fmt: skip
    return len(encode_announcement(announcement, b"0" * 32, lambda _: b"0" * 64))


def _chain(now_ms: int) -> tuple[bytes, ...]:
    """Passes by a member, and by the founder for that member."""
    granted = MembershipPass(MESH_ID, "12D3KooW" + "S" * 44, b"0" * 16, now_ms, now_ms + PASS_LIFE_MS)
    by_founder, by_member = b"", b"0" * 32
    return tuple(encode_pass(granted, key, lambda _: b"0" * 64) for key in (by_member, by_founder))


class TrafficLedger:
    """Bytes in and out by peer, and by cause over all peers."""

    def __init__(self) -> None:
        self.alike = array("q")
        """In and out alike, by peer: gossip, of which ``pass_on`` says what for, and probes."""
        self.sent = array("q")
        self.received = array("q")
        self._by_cause = [0] * len(Cause)

    def add_peer(self) -> None:
        """The next number."""
        for column in (self.alike, self.sent, self.received):
            column.append(0)

    def exchange(self, a: int, b: int, cause: Cause, sent: int, received: int) -> None:
        """a sends and receives; b the other way round."""
        self.sent[a] += sent
        self.received[a] += received
        self.sent[b] += received
        self.received[b] += sent
        self._by_cause[cause] += 2 * (sent + received)

    def exchange_alike(self, a: int, b: int, cause: Cause, size_bytes: int) -> None:
        """Both send and receive as much."""
        alike = self.alike
        alike[a] += size_bytes
        alike[b] += size_bytes
        self._by_cause[cause] += 4 * size_bytes

    def alone(self, number: int, cause: Cause, sent: int, received: int) -> None:
        """Bytes to or from nobody in particular."""
        self.sent[number] += sent
        self.received[number] += received
        self._by_cause[cause] += sent + received

    def pass_on(self, cause: Cause, total_bytes: int) -> None:
        """Gossip of a cause: so many bytes came in over all peers, and as many went out."""
        self._by_cause[cause] += 2 * total_bytes

    def forget(self) -> None:
        """All counters back to nothing: what stood at the start was paid before it."""
        for column in (self.alike, self.sent, self.received):
            for number in range(len(column)):
                column[number] = 0
        self._by_cause = [0] * len(Cause)

    def totals(self, number: int) -> tuple[int, int]:
        """All bytes that a peer sent, and received."""
        return self.sent[number] + self.alike[number], self.received[number] + self.alike[number]

    def by_cause(self) -> dict[str, int]:
        """In and out together, over all peers."""
        return {cause.name.lower(): self._by_cause[cause] for cause in Cause}
