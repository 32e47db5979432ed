"""BIP-340 signatures over secp256k1 in whole numbers: slow, and independent of the library of the relays' adapter.

For vectors alone: nothing here is constant in time, and every signature of a message is the same.
"""

import hashlib
from dataclasses import dataclass

_P = 2**256 - 2**32 - 977
_N = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
_G = (
    0x79BE667EF9DCBBAC55A06295CE870B07029BFCDB2DCE28D959F2815B16F81798,
    0x483ADA7726A3C4655DA4FBFC0E1108A8FD17B448A68554199C47D08FFB10D4B8,
)
Point = tuple[int, int]


def _add(a: Point | None, b: Point | None) -> Point | None:
    if a is None or b is None:
        return a or b
    if a[0] == b[0] and (a[1] + b[1]) % _P == 0:
        return None
    rise, run = (3 * a[0] * a[0], 2 * a[1]) if a == b else (b[1] - a[1], b[0] - a[0])
    slope = rise * pow(run, -1, _P) % _P
    x = (slope * slope - a[0] - b[0]) % _P
    return x, (slope * (a[0] - x) - a[1]) % _P


def _times(scalar: int, point: Point | None) -> Point | None:
    total = None
    while scalar:
        if scalar & 1:
            total = _add(total, point)
        point = _add(point, point)
        scalar >>= 1
    return total


def _tagged(tag: str, data: bytes) -> int:
    head = hashlib.sha256(tag.encode()).digest()
    return int.from_bytes(hashlib.sha256(head + head + data).digest(), "big")


def _lift(x: int) -> Point | None:
    """The point of an x coordinate whose y is even."""
    if x >= _P:
        return None
    square = (pow(x, 3, _P) + 7) % _P
    y = pow(square, (_P + 1) // 4, _P)
    if y * y % _P != square:
        return None
    return x, y if y % 2 == 0 else _P - y


@dataclass(frozen=True, slots=True)
class NostrKey:
    """A key pair that anyone can derive from its name."""

    name: str

    @property
    def secret(self) -> str:
        """64 hex digits."""
        return hashlib.sha256(f"p2pmesh nostr test key: {self.name}".encode()).hexdigest()

    @property
    def public(self) -> str:
        """64 hex digits."""
        return f"{self._even()[1]:064x}"

    def sign(self, digest: str) -> str:
        """The signature of an event id."""
        secret, x = self._even()
        message = bytes.fromhex(digest)
        masked = secret ^ _tagged("BIP0340/aux", bytes(32))
        nonce = _tagged("BIP0340/nonce", masked.to_bytes(32, "big") + x.to_bytes(32, "big") + message) % _N
        point = _times(nonce, _G)
        assert point is not None
        nonce = nonce if point[1] % 2 == 0 else _N - nonce
        challenge = _challenge(point[0], x, message)
        return f"{point[0]:064x}{(nonce + challenge * secret) % _N:064x}"

    def _even(self) -> tuple[int, int]:
        """The secret whose point has an even y, and the point's x."""
        secret = int(self.secret, 16) % _N
        point = _times(secret, _G)
        assert point is not None
        return (secret if point[1] % 2 == 0 else _N - secret), point[0]


def verify_event(public: str, digest: str, signature: str) -> bool:
    """Whether a signature of an event id is right."""
    key = _lift(int(public, 16))
    r, s = int(signature[:64], 16), int(signature[64:], 16)
    if key is None or r >= _P or s >= _N:
        return False
    challenge = _challenge(r, key[0], bytes.fromhex(digest))
    point = _add(_times(s, _G), _times(_N - challenge, key))
    return point is not None and point[1] % 2 == 0 and point[0] == r


def _challenge(r: int, x: int, message: bytes) -> int:
    return _tagged("BIP0340/challenge", r.to_bytes(32, "big") + x.to_bytes(32, "big") + message) % _N
