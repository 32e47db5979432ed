"""What a node tells its operator: structured events, a fixed name and fields, no prose."""

from collections.abc import Callable
from typing import Any

Report = Callable[[str, dict[str, Any]], None]
"""``report(event name, fields)``; must neither block nor raise."""
"""Names in use are listed with their fields in ``docs/events.md``."""
