"""Guardrails: what is mended of requests and answers when an operator asks for it, and when."""
