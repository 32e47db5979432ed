"""The simulator: the machines of ``core`` under a heap instead of trio.

Time is the scheduler's, chance is drawn per peer and machine from the scenario's seed, links and faults are data.
Nothing here reads a clock, and neither trio nor libp2p is imported. Gossip is modelled as a delay, not message by
message; gossipsub itself is tested with real peers.
"""
