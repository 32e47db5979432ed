"""p2pmesh: one OpenAI-compatible endpoint over machines that people can spare."""

__version__ = "0.1.0"
