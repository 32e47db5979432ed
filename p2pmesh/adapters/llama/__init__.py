"""The engine: llama.cpp in a child process, and the node's side of it."""
