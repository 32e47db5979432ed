"""Which bytes may follow: a compiled grammar run over a text, byte by byte, all its readings at once.

A state holds every reading of the text so far: a node, the place inside a character, the rules to return to. States are
kept and so are the moves between them, so that text of a kind that was met before costs one look-up a byte. Work is
counted, never timed: what is refused does not depend on the machine. A text is read at most ``MAX_GRAMMAR_DEPTH`` rules
deep and ``MAX_GRAMMAR_READINGS`` ways at once.
"""

from dataclasses import dataclass, field

from p2pmesh.base.limits import MAX_GRAMMAR_DEPTH, MAX_GRAMMAR_READINGS
from p2pmesh.core.grammar.characters import DONE
from p2pmesh.core.grammar.network import NEVER, Network, NodeKind
from p2pmesh.core.grammar.notation import invalid_grammar

WORK_PER_TOKEN = 1_000_000
"""Nodes that may be looked at anew for one sampled token: a second or two in Python."""
_KEPT_CELLS = 200_000
"""Of all states that are remembered, their readings and the rules these return to; all are forgotten beyond."""

Reading = tuple[int, int, tuple[int, ...]]
"""Node, place inside its character, nodes to return to (the innermost last)."""


@dataclass(slots=True, eq=False)
class State:
    """What may follow. ``least_bytes`` is the shortest rest; ``is_complete``: it may be none."""

    readings: tuple[Reading, ...]
    is_complete: bool
    least_bytes: int
    moves: "dict[int, State | None]" = field(default_factory=dict)


class Matcher:
    """States of one grammar; serves any number of texts."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._states: dict[tuple[Reading, ...], State] = {}
        self._cells = 0
        self._work_left = WORK_PER_TOKEN
        self._start: State | None = None

    @property
    def start(self) -> State:
        """Before the first byte."""
        if self._start is None:
            self._start = self._state_of([(self._network.start, ())])
        return self._start

    def grant(self, work: int = WORK_PER_TOKEN) -> None:
        """What may be spent from now on; beyond it ``RemoteProtocolError(GRAMMAR_INVALID)`` is raised."""
        self._work_left = work

    def walk(self, state: State, data: bytes) -> State | None:
        """The state after some bytes; None where they are refused."""
        for byte in data:
            moves = state.moves
            following = moves[byte] if byte in moves else self._move(state, byte)
            if following is None:
                return None
            state = following
        return state

    def _move(self, state: State, byte: int) -> State | None:
        network = self._network
        self._spend(len(state.readings))
        entered: list[tuple[int, tuple[int, ...]]] = []
        inside: list[Reading] = []
        for node, place, returns in state.readings:
            target = network.sets[network.first[node]].moves[place].get(byte)
            if target is None:
                continue
            if target == DONE:
                entered.append((network.second[node], returns))
            else:
                inside.append((node, target, returns))
        following = self._state_of(entered, inside) if entered or inside else None
        if following is not None and not following.readings and not following.is_complete:
            following = None
        state.moves[byte] = following
        return following

    def _state_of(self, entered: list[tuple[int, tuple[int, ...]]], inside: list[Reading] | None = None) -> State:
        """The state whose readings are at characters, from nodes of any kind."""
        readings, is_complete = self._expand(entered)
        every = tuple(sorted({*readings, *(inside or ())}))
        key = (*every, (-1, 0, ())) if is_complete else every
        known = self._states.get(key)
        if known is None:
            known = State(every, is_complete, 0 if is_complete else self._least_bytes(every))
            self._keep(key, known)
        return known

    def _expand(self, entered: list[tuple[int, tuple[int, ...]]]) -> tuple[list[Reading], bool]:
        """The readings at characters that nodes stand for, and whether the text may end here."""
        network = self._network
        readings: list[Reading] = []
        is_complete = False
        seen = set(entered)
        waiting = list(seen)
        while waiting:
            node, returns = waiting.pop()
            kind, first, second = network.kinds[node], network.first[node], network.second[node]
            if network.least_bytes[node] >= NEVER:
                continue
            following: list[tuple[int, tuple[int, ...]]] = []
            if kind is NodeKind.CHARACTER:
                readings.append((node, 0, returns))
            elif kind is NodeKind.SPLIT:
                following = [(way, returns) for way in network.ways[first]]
            elif kind is NodeKind.CALL:
                following = self._call(first, second, returns)
            elif returns:
                following = [(returns[-1], returns[:-1])]
            else:
                is_complete = True
            for one in following:
                if one not in seen:
                    seen.add(one)
                    waiting.append(one)
            if len(seen) > MAX_GRAMMAR_READINGS:
                raise invalid_grammar(f"more than {MAX_GRAMMAR_READINGS} ways to read one text")
        self._spend(len(seen))
        return readings, is_complete

    def _call(self, head: int, then: int, returns: tuple[int, ...]) -> list[tuple[int, tuple[int, ...]]]:
        if self._network.kinds[then] is NodeKind.END:  # nothing to come back for: a list of a thousand stays flat
            return [(head, returns)]
        return [(head, (*returns, then))] if len(returns) < MAX_GRAMMAR_DEPTH else []

    def _least_bytes(self, readings: tuple[Reading, ...]) -> int:
        network = self._network
        costs = network.least_bytes
        return min(
            (
                network.sets[network.first[node]].least_bytes[place]
                + costs[network.second[node]]
                + sum(costs[one] for one in returns)
                for node, place, returns in readings
            ),
            default=NEVER,
        )

    def _keep(self, key: tuple[Reading, ...], state: State) -> None:
        self._cells += 1 + sum(1 + len(returns) for _, _, returns in state.readings)
        if self._cells > _KEPT_CELLS:
            for kept in self._states.values():
                kept.moves.clear()
            self._states.clear()
            self._cells = 0
            self._start = None
        self._states[key] = state

    def _spend(self, work: int) -> None:
        self._work_left -= work
        if self._work_left < 0:
            raise invalid_grammar("it takes too much work for one token; make it less ambiguous")
