"""The ways in which models write calls, by family, each as the literals round a name and a JSON object of arguments.

Which one a model uses is read off its chat template. A template that knows no tools, or writes calls in no way that is
listed, gets the convention ``plain``, which is put to the model in words (``conversation``).

    opening (head NAME middle ARGUMENTS tail) separator (head NAME middle ARGUMENTS tail) … closing
"""

from collections.abc import Sequence
from dataclasses import dataclass

from p2pmesh.wire.generation import ToolCall


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One way. ``trigger`` begins ``opening + head`` and nothing else that a model says.

    ``is_at_start``: calls come instead of an answer, not after one. ``may_repeat`` false: one call at most.
    """

    name: str
    trigger: str
    head: str
    middle: str
    tail: str
    opening: str = ""
    separator: str = ""
    closing: str = ""
    is_at_start: bool = False
    may_repeat: bool = True

    def write(self, calls: Sequence[ToolCall]) -> str:
        """The text of some calls."""
        shown = (f"{self.head}{call.name}{self.middle}{call.arguments}{self.tail}" for call in calls)
        return self.opening + self.separator.join(shown) + self.closing


HERMES = CallFormat(
    "hermes", "<tool_call>", '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", separator="\n"
)
"""Hermes 2 Pro, Qwen 2.5 and Qwen 3, and many trained after them."""
PLAIN = CallFormat("plain", HERMES.trigger, HERMES.head, HERMES.middle, HERMES.tail, separator=HERMES.separator)
"""For models that were taught none: the way that most others were."""
LLAMA3 = CallFormat("llama3", '{"name":', '{"name": "', '", "parameters": ', "}", is_at_start=True, may_repeat=False)
MISTRAL = CallFormat("mistral", "[TOOL_CALLS]", '{"name": "', '", "arguments": ', "}", "[TOOL_CALLS][", ", ", "]")
MISTRAL_ARGS = CallFormat("mistral-args", "[TOOL_CALLS]", "[TOOL_CALLS]", "[ARGS]", "")
"""Mistral's tokenizers from version 11 on."""
PHI4 = CallFormat(
    "phi4", "<|tool_call|>", '{"name": "', '", "arguments": ', "}", "<|tool_call|>[", ", ", "]<|/tool_call|>"
)
FUNCTION = CallFormat("function", "<function=", "<function=", ">", "</function>")
"""Functionary 3.1, and Llama 3.1 with its custom format."""

FORMATS = {one.name: one for one in (HERMES, PLAIN, LLAMA3, MISTRAL, MISTRAL_ARGS, PHI4, FUNCTION)}
MARKERS = frozenset(
    {"<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|tool_call|>", "<|/tool_call|>", "<function="}
)
"""Texts that some vocabularies hold as control tokens, which have no text otherwise: of a call they are part."""


def detect_format(template: str | None) -> CallFormat:
    """The format of a chat template."""
    if template is None or "tools" not in template:
        return PLAIN
    writes_elements = "<parameter=" in template  # arguments as elements, not as JSON
    if "[TOOL_CALLS]" in template:
        return MISTRAL_ARGS if "[ARGS]" in template else MISTRAL
    if "<tool_call>" in template and not writes_elements:
        return HERMES
    if "<|tool_call|>" in template:
        return PHI4
    if "<function=" in template and not writes_elements:
        return FUNCTION
    if '"parameters": ' in template and ("<|python_tag|>" in template or "ipython" in template):
        return LLAMA3
    return PLAIN


def find_format(name: str) -> CallFormat:
    """The format of a name; one that is not known is read as ``plain``, since its driver is of a later version."""
    return FORMATS.get(name, PLAIN)
