"""What the client programs in Python share: their orders from the environment, and how they report their checks.

The contract is that of ``interop/README.md``: one JSON object a line for each check, exit code 0 exactly if all passed.
What each client is made to do stays in its program.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable

BASE_URL = os.environ["CLIENT_BASE_URL"]
API_KEY = os.environ["CLIENT_API_KEY"]
ONCE_A_MINUTE_KEY = os.environ["CLIENT_ONCE_A_MINUTE_KEY"]
MODEL = os.environ["CLIENT_MODEL"]

CITIES = ["Bern", "Oslo"]
WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": CITIES}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "forecast", "description": "The weather", "parameters": WEATHER, "strict": True},
}
QUESTION = [{"role": "user", "content": "Name three colours."}]
LONG_ANSWER_TOKENS = 1500
TOO_LONG = "far " * 20_000

_REPORTS = os.fdopen(os.dup(sys.stdout.fileno()), "w")
os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # some clients print; nothing but reports may stand on stdout


def assert_weather(text: str) -> None:
    """Arguments or an answer that keep to ``WEATHER``."""
    given = json.loads(text)
    assert set(given) == {"city", "days"}, given
    assert given["city"] in CITIES, given
    assert 1 <= given["days"] <= 7, given


def expect(kind: type[Exception], ask: Callable[[], object]) -> Exception:
    """The client's own exception that ``ask`` must raise."""
    try:
        answer = ask()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}, but {answer!r:.200}")


def run(*checks: Callable[[], None]) -> None:
    """All of them, whatever becomes of one; ends the process."""
    are_passed = [_passes(check) for check in checks]
    sys.exit(0 if all(are_passed) else 1)


def _passes(check: Callable[[], None]) -> bool:
    error = None
    try:
        check()
    except Exception as raised:  # noqa: BLE001 - whatever a client raises is the report on its check
        traceback.print_exc()
        error = f"{type(raised).__name__}: {raised}".splitlines()[0][:300]
    print(json.dumps({"check": check.__name__, "ok": error is None, "error": error}), file=_REPORTS, flush=True)
    return error is None
