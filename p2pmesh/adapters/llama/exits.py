"""Why an engine process ended, in one line for the person who runs the node."""

import signal

_ADVICE = {
    signal.SIGILL: (
        "illegal instruction",
        "this machine lacks an instruction that llama.cpp was built for; rebuild llama-cpp-python for it",
    ),
    signal.SIGABRT: ("a check inside llama.cpp failed", "report it with the line that follows"),
    signal.SIGSEGV: ("bad memory access inside llama.cpp", "check the model file's digest; report it if it is right"),
    signal.SIGBUS: ("the model file changed or became unreadable", "check the disk and the file"),
    signal.SIGFPE: ("bad arithmetic inside llama.cpp", "check the model file's digest; report it if it is right"),
    signal.SIGKILL: ("probably out of memory", "use fewer layers, a smaller context or --max-memory"),
    signal.SIGTERM: ("someone ended it", "nothing to do"),
}


def describe_exit(return_code: int, last_line: str) -> str:
    """The cause behind a return code (negative: a signal), with the last line the process wrote."""
    tail = f" ({last_line})" if last_line else ""
    if return_code >= 0:
        return f"the engine process ended with status {return_code}{tail}"
    try:
        number = signal.Signals(-return_code)
    except ValueError:
        return f"the engine process was killed by signal {-return_code}{tail}"
    cause, advice = _ADVICE.get(number, ("an unusual signal", "look at the system's log"))
    return f"the engine process was killed by {number.name} ({cause}): {advice}{tail}"


def last_line_of(stderr: bytes) -> str:
    """The last line of captured stderr that says something, at most 300 characters."""
    for line in reversed(stderr.decode("utf-8", "replace").splitlines()):
        if line.strip():
            return line.strip()[:300]
    return ""
