"""Every error code as a process exit code.

0 is success, 1 an unforeseen failure, 2 a command line that cannot be understood. The others are one code each, in
the order of ``ErrorCode``'s groups, so that a script can tell them apart. A number, once given, stays.
"""

from collections.abc import Mapping
from types import MappingProxyType

from p2pmesh.base.errors import ErrorCode

OK = 0
FAILED = 1
USAGE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141

_C = ErrorCode

EXIT_CODES: Mapping[ErrorCode, int] = MappingProxyType(
    {
        _C.INTERNAL: FAILED,
        _C.CONFIG_INVALID: USAGE,
        # what the operator gave
        _C.MODEL_NOT_FOUND: 10,
        _C.MODEL_NOT_A_FILE: 11,
        _C.GGUF_NOT_GGUF: 12,
        _C.GGUF_TRUNCATED: 13,
        _C.GGUF_INVALID: 14,
        _C.ARCHITECTURE_UNSUPPORTED: 15,
        _C.CUT_UNSUPPORTED: 16,
        _C.PORT_IN_USE: 17,
        _C.ADDRESS_INVALID: 18,
        _C.HOME_IN_USE: 19,
        _C.HOME_UNUSABLE: 20,
        _C.NODE_NOT_RUNNING: 21,
        _C.NODE_UNRESPONSIVE: 29,
        _C.IDENTITY_DUPLICATED: 27,
        _C.OWNER_KEY_MISSING: 22,
        _C.OWNER_KEY_EXISTS: 23,
        _C.PASSPHRASE_MISSING: 24,
        _C.PASSPHRASE_WRONG: 25,
        _C.CLAIM_INVALID: 26,
        _C.PACKAGE_INVALID: 28,
        # joining
        _C.INVITE_MALFORMED: 30,
        _C.INVITE_EXPIRED: 31,
        _C.INVITE_FOREIGN: 32,
        _C.INVITE_MISSING: 33,
        _C.GENERATION_UNSUPPORTED: 34,
        _C.NOT_ADMITTED: 35,
        _C.PEER_UNREACHABLE: 36,
        _C.PEER_LOST: 37,
        _C.OWNERSHIP_REFUSED: 38,
        _C.INVITE_REVOKED: 39,
        _C.INVITE_EXHAUSTED: 70,
        _C.PASS_INVALID: 71,
        _C.PASS_EXPIRED: 72,
        _C.PEER_REMOVED: 73,
        _C.VERSION_UNSUPPORTED: 74,
        # serving
        _C.PLACEMENT_REFUSED: 40,
        _C.MODEL_NOT_READY: 41,
        _C.MODEL_UNKNOWN: 42,
        _C.STAGE_UNKNOWN: 43,
        _C.ENGINE_CRASHED: 44,
        _C.ENGINE_UNRESPONSIVE: 45,
        _C.ENGINE_LOAD_FAILED: 46,
        _C.ARTIFACT_UNKNOWN: 47,
        _C.ARTIFACT_CORRUPT: 48,
        _C.DISK_FULL: 49,
        _C.OVERLOADED: 50,
        _C.DEADLINE_EXCEEDED: 51,
        _C.CANCELLED: 52,
        _C.SHUTTING_DOWN: 53,
        _C.HUB_UNREACHABLE: 54,
        _C.HUB_REFUSED: 55,
        _C.TERM_STALE: 56,
        _C.TERM_CONFLICT: 57,
        _C.MODEL_LEASED: 58,
        _C.QUORUM_LOST: 59,
        # requests of ``p2pmesh chat`` and ``status``
        _C.REQUEST_INVALID: 60,
        _C.REQUEST_TOO_LARGE: 61,
        _C.REQUEST_TIMEOUT: 62,
        _C.PARAMETER_UNSUPPORTED: 63,
        _C.CONTEXT_LENGTH_EXCEEDED: 64,
        _C.UNAUTHORIZED: 65,
        _C.SITE_REFUSED: 69,
        _C.ROUTE_UNKNOWN: 66,
        _C.GRAMMAR_INVALID: 67,
        _C.GRAMMAR_DEAD_END: 68,
        _C.LOGIT_BIAS_INVALID: 79,
        # bytes from a peer
        _C.MESSAGE_MALFORMED: 80,
        _C.MESSAGE_TOO_LARGE: 81,
        _C.MESSAGE_KIND_UNKNOWN: 82,
        _C.MESSAGE_UNEXPECTED: 83,
        _C.SIGNATURE_INVALID: 84,
        _C.FRAME_LENGTH_INVALID: 85,
        _C.FRAME_VERSION_UNSUPPORTED: 86,
        _C.FRAME_KIND_UNKNOWN: 87,
        _C.FRAME_DTYPE_INVALID: 88,
        _C.FRAME_COUNT_INVALID: 89,
        _C.FRAME_POSITION_INVALID: 90,
        _C.FRAME_FLAGS_INVALID: 91,
        _C.FRAME_VALUE_INVALID: 92,
        _C.FRAME_UNEXPECTED: 93,
        _C.CREDIT_EXCEEDED: 94,
        _C.CANNOT_ROLLBACK: 96,
        _C.NOT_IN_PLACEMENT: 95,
    }
)
