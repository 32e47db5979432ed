"""Expressions -> a network of nodes: what a matcher walks.

Owns the shape and the size of a compiled grammar, what the shortest text from each node is, and the refusal of rules
that nothing bounded could match (left recursion, rules without an end). How texts are matched is ``matcher``'s.
"""

import heapq
from dataclasses import dataclass, field
from enum import IntEnum

from p2pmesh.base.limits import MAX_GRAMMAR_NODES
from p2pmesh.core.grammar.characters import CharacterSet, compile_characters
from p2pmesh.core.grammar.notation import (
    ROOT,
    Characters,
    Choice,
    Expression,
    Ranges,
    Reference,
    Repeat,
    Series,
    invalid_grammar,
    parse_grammar,
)

NEVER = 1 << 60
"""Bytes of the shortest text where there is none."""


class NodeKind(IntEnum):
    """What a node stands for."""

    CHARACTER = 0  # one character of ``sets[first]``, then node ``second``
    CALL = 1  # the rule that begins at node ``first``, then node ``second``
    SPLIT = 2  # any of the nodes ``ways[first]``
    END = 3  # the end of a rule


@dataclass(frozen=True, slots=True)
class Network:
    """A compiled grammar. ``least_bytes[node]``: the shortest text from a node to the end of its rule."""

    kinds: list[NodeKind]
    first: list[int]
    second: list[int]
    ways: list[tuple[int, ...]]
    sets: list[CharacterSet]
    least_bytes: list[int]
    start: int


def compile_grammar(text: str) -> Network:
    """The network of a grammar's text; ``RemoteProtocolError(GRAMMAR_INVALID)`` if it has none within the limits."""
    rules = parse_grammar(text)
    builder = _Builder(rules)
    for name, expression in rules.items():
        builder.add_rule(name, expression)
    network = builder.finish()
    if network.least_bytes[network.start] >= NEVER:
        raise invalid_grammar("no text ever satisfies it")
    _refuse_left_recursion(network, builder.names)
    return network


@dataclass(slots=True)
class _Builder:
    rules: dict[str, Expression]
    kinds: list[NodeKind] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    second: list[int] = field(default_factory=list)
    ways: list[tuple[int, ...]] = field(default_factory=list)
    sets: list[CharacterSet] = field(default_factory=list)
    known_sets: dict[Ranges, int] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.rules:  # a rule may be used above its definition: its head is a node of its own
            self.heads[name] = self._node(NodeKind.SPLIT, self._way(()))
            self.names[self.heads[name]] = name

    def add_rule(self, name: str, expression: Expression) -> None:
        end = self._node(NodeKind.END)
        self.ways[self.first[self.heads[name]]] = (self._add(expression, end),)

    def finish(self) -> Network:
        network = Network(
            self.kinds, self.first, self.second, self.ways, self.sets, [NEVER] * len(self.kinds), self.heads[ROOT]
        )
        _measure(network)
        return network

    def _add(self, expression: Expression, then: int) -> int:
        """The node where the expression begins that goes on with ``then``."""
        match expression:
            case Characters(ranges):
                return self._node(NodeKind.CHARACTER, self._set(ranges), then)
            case Reference(name):
                if name not in self.heads:
                    raise invalid_grammar(f"no rule {name}")
                return self._node(NodeKind.CALL, self.heads[name], then)
            case Series(parts):
                for part in reversed(parts):
                    then = self._add(part, then)
                return then
            case Choice(ways):
                return self._node(NodeKind.SPLIT, self._way(tuple(self._add(way, then) for way in ways)))
            case Repeat():
                return self._repeat(expression, then)

    def _repeat(self, repeat: Repeat, then: int) -> int:
        if repeat.most is None:
            slot = self._way(())
            loop = self._node(NodeKind.SPLIT, slot)
            self.ways[slot] = (self._add(repeat.part, loop), then)
            entry = loop
        else:
            entry = then
            for _ in range(repeat.most - repeat.least):  # nested, not in line: from each place two ways lead on
                entry = self._node(NodeKind.SPLIT, self._way((self._add(repeat.part, entry), then)))
        for _ in range(repeat.least):
            entry = self._add(repeat.part, entry)
        return entry

    def _node(self, kind: NodeKind, first: int = 0, second: int = 0) -> int:
        if len(self.kinds) >= MAX_GRAMMAR_NODES:
            raise invalid_grammar(f"more than {MAX_GRAMMAR_NODES} nodes once its repetitions are written out")
        self.kinds.append(kind)
        self.first.append(first)
        self.second.append(second)
        return len(self.kinds) - 1

    def _way(self, targets: tuple[int, ...]) -> int:
        self.ways.append(targets)
        return len(self.ways) - 1

    def _set(self, ranges: Ranges) -> int:
        if ranges not in self.known_sets:
            self.known_sets[ranges] = len(self.sets)
            self.sets.append(compile_characters(ranges))
        return self.known_sets[ranges]


def _measure(network: Network) -> None:
    """Fills ``least_bytes``: Knuth's generalisation of Dijkstra's algorithm to grammars (1977)."""
    needed_by = _needed_by(network)
    costs = network.least_bytes
    settled = [False] * len(costs)
    queue = [(0, node) for node, kind in enumerate(network.kinds) if kind is NodeKind.END]
    while queue:
        cost, node = heapq.heappop(queue)
        if settled[node]:
            continue
        settled[node] = True
        costs[node] = cost
        for user in needed_by[node]:
            if not settled[user]:
                candidate = _least_of(network, user)
                if candidate < NEVER:
                    heapq.heappush(queue, (candidate, user))


def _needed_by(network: Network) -> list[list[int]]:
    users: list[list[int]] = [[] for _ in network.kinds]
    for node, kind in enumerate(network.kinds):
        match kind:
            case NodeKind.CHARACTER:
                users[network.second[node]].append(node)
            case NodeKind.CALL:
                users[network.first[node]].append(node)
                users[network.second[node]].append(node)
            case NodeKind.SPLIT:
                for way in network.ways[network.first[node]]:
                    users[way].append(node)
            case NodeKind.END:
                pass
    return users


def _least_of(network: Network, node: int) -> int:
    """By what is known of the nodes after it."""
    costs = network.least_bytes
    first, second = network.first[node], network.second[node]
    match network.kinds[node]:
        case NodeKind.CHARACTER:
            characters = network.sets[first]
            return characters.least_bytes[0] + costs[second] if characters.moves[0] else NEVER
        case NodeKind.CALL:
            return costs[first] + costs[second]
        case NodeKind.SPLIT:
            return min((costs[way] for way in network.ways[first]), default=NEVER)
        case NodeKind.END:
            return 0


def _refuse_left_recursion(network: Network, names: dict[int, str]) -> None:
    """A rule that can come to itself before a character would be entered without end."""
    colours: dict[int, bool] = {}  # by head: False while it is looked at, True after
    for head in names:
        path: list[tuple[int, list[int]]] = [] if head in colours else [(head, _left_calls(network, head))]
        while path:
            node, calls = path[-1]
            colours.setdefault(node, False)
            if not calls:
                colours[node] = True
                path.pop()
                continue
            called = calls.pop()
            if colours.get(called) is False:
                raise invalid_grammar(f"the rule {names[called]} is left-recursive")
            if called not in colours:
                path.append((called, _left_calls(network, called)))


def _left_calls(network: Network, head: int) -> list[int]:
    """Rules that can begin where the rule of ``head`` begins, without a character before them."""
    seen = {head}
    waiting = [head]
    called: dict[int, None] = {}
    while waiting:
        node = waiting.pop()
        kind, first, second = network.kinds[node], network.first[node], network.second[node]
        following: tuple[int, ...] = ()
        if kind is NodeKind.SPLIT:
            following = network.ways[first]
        elif kind is NodeKind.CALL:
            called[first] = None
            following = (second,) if network.least_bytes[first] == 0 else ()
        for target in following:
            if target not in seen:
                seen.add(target)
                waiting.append(target)
    return list(called)
