"""Nostr relays: our key there, one relay's WebSocket, and all of them as ``ports.relays``."""
