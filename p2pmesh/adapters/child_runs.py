"""A module of this package, run in a process of its own until it ends: what it wrote, and how it ended.

For measurements and questions of seconds. Engines, which live on, are ``adapters.llama.child``'s.
"""

import subprocess
import sys
from collections.abc import Mapping


def run_module(
    module: str, *arguments: str, timeout_s: float, environment: Mapping[str, str], given: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Blocks until the child has ended; ``given`` is all that it reads.

    Raises ``subprocess.TimeoutExpired`` once it was killed for taking longer, ``OSError`` where none can be started.
    """
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        input=given,
        capture_output=True,
        timeout=timeout_s,
        check=False,
        env=environment,
    )
