"""Every failure that a person or a peer can meet, by code.

One code, one meaning. Three tables give a code its shape outside: HTTP status (``api/errors.py``), process exit code
(``cli/exit_codes.py``) and, on the wire, the code's own text. Tests check that each table covers every code.
"""

from enum import StrEnum


class ErrorCode(StrEnum):
    """Stable identifiers; they travel on the wire and in ``{"event": "error"}`` lines."""

    # what the operator gave us
    CONFIG_INVALID = "config_invalid"
    MODEL_NOT_FOUND = "model_not_found"
    MODEL_NOT_A_FILE = "model_not_a_file"
    GGUF_NOT_GGUF = "gguf_not_gguf"
    GGUF_TRUNCATED = "gguf_truncated"
    GGUF_INVALID = "gguf_invalid"
    ARCHITECTURE_UNSUPPORTED = "architecture_unsupported"
    CUT_UNSUPPORTED = "cut_unsupported"
    PORT_IN_USE = "port_in_use"
    ADDRESS_INVALID = "address_invalid"
    HOME_IN_USE = "home_in_use"
    HOME_UNUSABLE = "home_unusable"
    NODE_NOT_RUNNING = "node_not_running"
    NODE_UNRESPONSIVE = "node_unresponsive"
    IDENTITY_DUPLICATED = "identity_duplicated"
    OWNER_KEY_MISSING = "owner_key_missing"
    OWNER_KEY_EXISTS = "owner_key_exists"
    PASSPHRASE_MISSING = "passphrase_missing"
    PASSPHRASE_WRONG = "passphrase_wrong"
    CLAIM_INVALID = "claim_invalid"
    PACKAGE_INVALID = "package_invalid"
    # joining
    INVITE_MALFORMED = "invite_malformed"
    INVITE_EXPIRED = "invite_expired"
    INVITE_FOREIGN = "invite_foreign"
    INVITE_MISSING = "invite_missing"
    INVITE_REVOKED = "invite_revoked"
    INVITE_EXHAUSTED = "invite_exhausted"
    PASS_INVALID = "pass_invalid"
    PASS_EXPIRED = "pass_expired"
    PEER_REMOVED = "peer_removed"
    VERSION_UNSUPPORTED = "version_unsupported"
    GENERATION_UNSUPPORTED = "generation_unsupported"
    NOT_ADMITTED = "not_admitted"
    OWNERSHIP_REFUSED = "ownership_refused"
    PEER_UNREACHABLE = "peer_unreachable"
    PEER_LOST = "peer_lost"
    # serving
    PLACEMENT_REFUSED = "placement_refused"
    MODEL_NOT_READY = "model_not_ready"
    MODEL_UNKNOWN = "model_unknown"
    STAGE_UNKNOWN = "stage_unknown"
    TERM_STALE = "term_stale"
    TERM_CONFLICT = "term_conflict"
    MODEL_LEASED = "model_leased"
    QUORUM_LOST = "quorum_lost"
    ENGINE_CRASHED = "engine_crashed"
    ENGINE_UNRESPONSIVE = "engine_unresponsive"
    ENGINE_LOAD_FAILED = "engine_load_failed"
    ARTIFACT_UNKNOWN = "artifact_unknown"
    ARTIFACT_CORRUPT = "artifact_corrupt"
    DISK_FULL = "disk_full"
    HUB_UNREACHABLE = "hub_unreachable"
    HUB_REFUSED = "hub_refused"
    OVERLOADED = "overloaded"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    CANCELLED = "cancelled"
    SHUTTING_DOWN = "shutting_down"
    INTERNAL = "internal"
    # API requests
    REQUEST_INVALID = "request_invalid"
    REQUEST_TOO_LARGE = "request_too_large"
    REQUEST_TIMEOUT = "request_timeout"
    PARAMETER_UNSUPPORTED = "unsupported_parameter"
    GRAMMAR_INVALID = "grammar_invalid"
    GRAMMAR_DEAD_END = "grammar_dead_end"
    LOGIT_BIAS_INVALID = "logit_bias_invalid"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    UNAUTHORIZED = "unauthorized"
    SITE_REFUSED = "site_refused"
    ROUTE_UNKNOWN = "route_unknown"
    # bytes from a peer
    MESSAGE_MALFORMED = "message_malformed"
    MESSAGE_TOO_LARGE = "message_too_large"
    MESSAGE_KIND_UNKNOWN = "message_kind_unknown"
    MESSAGE_UNEXPECTED = "message_unexpected"
    SIGNATURE_INVALID = "signature_invalid"
    FRAME_LENGTH_INVALID = "frame_length_invalid"
    FRAME_VERSION_UNSUPPORTED = "frame_version_unsupported"
    FRAME_KIND_UNKNOWN = "frame_kind_unknown"
    FRAME_DTYPE_INVALID = "frame_dtype_invalid"
    FRAME_COUNT_INVALID = "frame_count_invalid"
    FRAME_POSITION_INVALID = "frame_position_invalid"
    CANNOT_ROLLBACK = "cannot_rollback"
    FRAME_FLAGS_INVALID = "frame_flags_invalid"
    FRAME_VALUE_INVALID = "frame_value_invalid"
    FRAME_UNEXPECTED = "frame_unexpected"
    CREDIT_EXCEEDED = "credit_exceeded"
    NOT_IN_PLACEMENT = "not_in_placement"


GARBAGE_CODES = frozenset(
    {
        ErrorCode.CREDIT_EXCEEDED,
        ErrorCode.FRAME_COUNT_INVALID,
        ErrorCode.FRAME_DTYPE_INVALID,
        ErrorCode.FRAME_FLAGS_INVALID,
        ErrorCode.FRAME_KIND_UNKNOWN,
        ErrorCode.FRAME_LENGTH_INVALID,
        ErrorCode.FRAME_POSITION_INVALID,
        ErrorCode.FRAME_UNEXPECTED,
        ErrorCode.FRAME_VALUE_INVALID,
        ErrorCode.FRAME_VERSION_UNSUPPORTED,
    }
)
"""What a stage stream is refused for: who sent it does not follow the protocol, or its engine answers garbage."""


class P2PMeshError(Exception):
    """Base of all: a code and one line that says what is wrong and what to do.

    ``retry_after_s``: when trying again may be of use, where whoever refuses can tell; 0: it cannot.
    """

    def __init__(self, code: ErrorCode, message: str, retry_after_s: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.message


class ConfigError(P2PMeshError):
    """What the operator gave cannot be used; nothing was started.

    ``excerpt`` are lines for a terminal that point at the place; the message says it all without them.
    """

    def __init__(self, code: ErrorCode, message: str, excerpt: tuple[str, ...] = ()) -> None:
        super().__init__(code, message)
        self.excerpt = excerpt


class LocalProtocolError(P2PMeshError):
    """This node would break a protocol; a bug of ours."""


class RemoteProtocolError(P2PMeshError):
    """Bytes from a peer (or a file) break a rule; the stream they came on is reset with the code.

    ``culprit`` is the id of the peer whose bytes they are, set only where that is beyond doubt.
    """

    def __init__(self, code: ErrorCode, message: str, culprit: str | None = None, retry_after_s: int = 0) -> None:
        super().__init__(code, message, retry_after_s)
        self.culprit = culprit


class PeerUnavailable(P2PMeshError):
    """A peer cannot be reached, or is gone."""


class EngineError(P2PMeshError):
    """An engine process died, hung or refused."""


class Refused(P2PMeshError):
    """A request was understood and is refused, for an enumerated reason."""
