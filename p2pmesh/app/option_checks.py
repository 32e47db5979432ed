"""What is wrong with an option as it was typed."""

from p2pmesh.base.errors import ConfigError, ErrorCode

MAX_CONTEXT_TOKENS = 16_777_216


def invalid(message: str) -> ConfigError:
    """The error of an option that says nothing sensible."""
    return ConfigError(ErrorCode.CONFIG_INVALID, message)


def check_range(what: str, value: int, least: int, most: int) -> None:
    """``ConfigError`` for a number out of its range."""
    if not least <= value <= most:
        raise invalid(f"{what} must be {least} to {most}, not {value}")
