"""Calls of tools inside generated text: how models write them, the grammar that holds them to it, and reading them.

How a client asks for tools and is told of calls is the API's; how a template shows tools to a model, the engine's.
"""
