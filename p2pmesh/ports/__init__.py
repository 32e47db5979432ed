"""What the node needs from the world: Protocol classes, one file per neighbour.

No base classes and no implementations here. Each port has an adapter under ``adapters`` and a fake under
``tests/fakes``.
"""
