"""Random texts of a grammar."""

import random

from p2pmesh.core.grammar.matcher import Matcher
from p2pmesh.core.grammar.network import compile_grammar


class Walker:
    """Walks a grammar at random, towards an end after some bytes."""

    def __init__(self, grammar: str) -> None:
        self._matcher = Matcher(compile_grammar(grammar))

    def text(self, rng: random.Random, patience: int = 80) -> str:
        state, data = self._matcher.start, bytearray()
        while not (state.is_complete and (len(data) > patience or rng.random() < 0.3)):
            self._matcher.grant()
            ways = [
                (byte, way) for byte in range(256) if (way := self._matcher.walk(state, bytes((byte,)))) is not None
            ]
            if not ways:
                assert state.is_complete
                break
            if len(data) > patience:
                ways = [pair for pair in ways if pair[1].least_bytes < state.least_bytes]
            if len(ways) > 60 and rng.random() < 0.3:  # ends of strings and escapes are few among many letters
                ways = [pair for pair in ways if pair[0] in b'"\\'] or ways
            byte, state = rng.choice(ways)
            data.append(byte)
        return data.decode()
