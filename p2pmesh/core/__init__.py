"""Decisions: pure machines and total functions.

A machine has ``handle(event, now) -> tuple[Effect, ...]`` and ``deadline() -> Micros | None``; its runner (``node``
under trio, ``sim`` under a heap) carries the effects out and calls it again. Nothing here does I/O, reads a clock,
draws randomness, logs, or iterates over a set.
"""
