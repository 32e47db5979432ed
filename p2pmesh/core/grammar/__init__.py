"""What a generated text may look like: grammars read, compiled, matched byte by byte, applied to tokens.

Grammars are in llama.cpp's notation (GBNF). Nothing of llama.cpp's own matcher is used (ADR 0036): a grammar comes from
a stranger, and its work is bounded here by counting.
"""
