"""Grammars at the last stage: compiled once each, and held against the model's vocabulary.

What a grammar means and costs at most is ``core.grammar``'s; nothing of llama.cpp's own grammars is used.
"""

from collections import OrderedDict
from collections.abc import Callable

from p2pmesh.core.grammar.constraint import Constraint, Rules, Words
from p2pmesh.core.grammar.matcher import Matcher
from p2pmesh.core.grammar.network import compile_grammar
from p2pmesh.wire.begin import Begin

_KEPT_GRAMMARS = 8
"""Clients ask under the same schema again and again; each may take some tens of megabytes of states."""


class GrammarShelf:
    """Makes the constraint of a sequence. ``read_words`` is asked once, with the first grammar: it takes a while."""

    def __init__(self, read_words: Callable[[], Words]) -> None:
        self._read_words = read_words
        self._words: Words | None = None
        self._matchers: OrderedDict[str, Matcher] = OrderedDict()

    def constrain(self, begin: Begin) -> Constraint | None:
        """What a sequence is held to; None for any text. ``RemoteProtocolError(GRAMMAR_INVALID)`` if it cannot be."""
        grammar = begin.grammar
        if grammar is None:
            return None
        if self._words is None:
            self._words = self._read_words()
        triggers = tuple(trigger.encode() for trigger in grammar.triggers)
        rules = Rules(self._matcher(grammar.text), begin.max_tokens, triggers, grammar.is_at_start)
        constraint = Constraint(rules, self._words)
        constraint.follow(())
        return constraint

    def _matcher(self, text: str) -> Matcher:
        matcher = self._matchers.pop(text, None) or Matcher(compile_grammar(text))
        self._matchers[text] = matcher
        while len(self._matchers) > _KEPT_GRAMMARS:
            self._matchers.popitem(last=False)
        return matcher
