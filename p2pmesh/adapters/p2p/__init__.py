"""py-libp2p 0.8.1 on trio, hardened: the only package that imports libp2p.

``host`` opens the network; ``hardening`` replaces what any peer could break; ``noise`` and ``yamux`` are our own
secure channel and multiplexer, wire-compatible with every libp2p; ``gossip`` publishes and subscribes. Kademlia is left
out on purpose: nothing uses the DHT yet, and each of its queries dials strangers.
"""
