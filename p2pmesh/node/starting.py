"""The type of trio's ``task_status`` argument.

Stated here because the stubs that a dependency of libp2p installs for trio are older than the name ``trio.TaskStatus``.
"""

from typing import Any, Protocol


class TaskStatus(Protocol):
    """Given to a task by ``nursery.start``."""

    def started(self, value: Any = None) -> None:
        """The task is up; ``nursery.start`` returns ``value``."""
