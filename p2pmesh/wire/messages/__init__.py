"""The messages of ``/mesh-llm/1``, a module for each conversation; ``wire.control`` reads and writes them."""
