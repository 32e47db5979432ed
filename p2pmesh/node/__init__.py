"""Services of one node, under trio: they run the machines of ``core`` against the ports.

Built and wired in ``app``; nothing here knows a concrete adapter.
"""
