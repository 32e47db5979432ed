"""Deterministic keys: real Ed25519, so that signatures and peer ids are those of the real thing."""

import hashlib

from p2pmesh.adapters.identity import Ed25519Verifier, NodeIdentity, identity_of_seed


def fake_identity(name: str) -> NodeIdentity:
    """The same key for the same name, in every run."""
    return identity_of_seed(hashlib.sha256(b"test identity:" + name.encode()).digest())


FakeVerifier = Ed25519Verifier
"""Checking signatures needs no fake: it is pure and fast."""
