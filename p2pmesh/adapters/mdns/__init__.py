"""Multicast DNS, by zeroconf; the only room that knows it, its thread and its asyncio loop."""
