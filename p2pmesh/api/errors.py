"""Every error code as an HTTP answer: status, OpenAI's error type, OpenAI's error code.

The one table; a test checks that it covers ``ErrorCode``. How an error is sent (before or after the first byte) is
the business of ``api.openai.endpoint``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused
from p2pmesh.core.retry_after import bounded_retry_after_s

INVALID_REQUEST = "invalid_request_error"
AUTHENTICATION = "authentication_error"
RATE_LIMIT = "rate_limit_error"
SERVER = "server_error"

RETRIABLE_STATUSES = frozenset({429, 503})


@dataclass(frozen=True, slots=True)
class HttpError:
    """How one code looks to an HTTP client; ``api_code`` is OpenAI's word where it differs from ours."""

    status: int
    type: str
    api_code: str | None = None


def _all(codes: tuple[ErrorCode, ...], answer: HttpError) -> dict[ErrorCode, HttpError]:
    return dict.fromkeys(codes, answer)


_C = ErrorCode

HTTP_ERRORS: Mapping[ErrorCode, HttpError] = MappingProxyType(
    {
        # the client's own doing
        _C.REQUEST_INVALID: HttpError(400, INVALID_REQUEST, "invalid_request"),
        _C.PARAMETER_UNSUPPORTED: HttpError(400, INVALID_REQUEST),
        _C.GRAMMAR_INVALID: HttpError(400, INVALID_REQUEST),
        _C.GRAMMAR_DEAD_END: HttpError(400, INVALID_REQUEST),
        _C.LOGIT_BIAS_INVALID: HttpError(400, INVALID_REQUEST),
        _C.CONTEXT_LENGTH_EXCEEDED: HttpError(400, INVALID_REQUEST),
        _C.REQUEST_TOO_LARGE: HttpError(413, INVALID_REQUEST),
        _C.REQUEST_TIMEOUT: HttpError(408, INVALID_REQUEST),
        _C.UNAUTHORIZED: HttpError(401, AUTHENTICATION, "invalid_api_key"),
        _C.SITE_REFUSED: HttpError(403, INVALID_REQUEST),
        _C.ROUTE_UNKNOWN: HttpError(404, INVALID_REQUEST),
        _C.MODEL_UNKNOWN: HttpError(404, INVALID_REQUEST, "model_not_found"),
        # not now; another try may succeed, a new placement may be on its way
        _C.OVERLOADED: HttpError(429, RATE_LIMIT),
        **_all(
            (
                _C.MODEL_NOT_READY,
                _C.PLACEMENT_REFUSED,
                _C.STAGE_UNKNOWN,
                _C.TERM_STALE,
                _C.TERM_CONFLICT,
                _C.MODEL_LEASED,
                _C.QUORUM_LOST,
                _C.ENGINE_CRASHED,
                _C.ENGINE_UNRESPONSIVE,
                _C.ENGINE_LOAD_FAILED,
                _C.PEER_UNREACHABLE,
                _C.PEER_LOST,
                _C.CANCELLED,
                _C.SHUTTING_DOWN,
            ),
            HttpError(503, SERVER),
        ),
        _C.DEADLINE_EXCEEDED: HttpError(504, SERVER),
        # another peer broke a rule on the way
        **_all(
            (
                _C.GENERATION_UNSUPPORTED,
                _C.VERSION_UNSUPPORTED,
                _C.PASS_INVALID,
                _C.PASS_EXPIRED,
                _C.PEER_REMOVED,
                _C.NOT_ADMITTED,
                _C.OWNERSHIP_REFUSED,
                _C.ARTIFACT_UNKNOWN,
                _C.ARTIFACT_CORRUPT,
                _C.MESSAGE_MALFORMED,
                _C.MESSAGE_TOO_LARGE,
                _C.MESSAGE_KIND_UNKNOWN,
                _C.MESSAGE_UNEXPECTED,
                _C.SIGNATURE_INVALID,
                _C.FRAME_LENGTH_INVALID,
                _C.FRAME_VERSION_UNSUPPORTED,
                _C.FRAME_KIND_UNKNOWN,
                _C.FRAME_DTYPE_INVALID,
                _C.FRAME_COUNT_INVALID,
                _C.FRAME_POSITION_INVALID,
                _C.CANNOT_ROLLBACK,
                _C.FRAME_FLAGS_INVALID,
                _C.FRAME_VALUE_INVALID,
                _C.FRAME_UNEXPECTED,
                _C.CREDIT_EXCEEDED,
                _C.NOT_IN_PLACEMENT,
            ),
            HttpError(502, SERVER),
        ),
        # what an operator meets at the command line; a request that meets one has found a bug of ours
        **_all(
            (
                _C.CONFIG_INVALID,
                _C.MODEL_NOT_A_FILE,
                _C.GGUF_NOT_GGUF,
                _C.GGUF_TRUNCATED,
                _C.GGUF_INVALID,
                _C.ARCHITECTURE_UNSUPPORTED,
                _C.CUT_UNSUPPORTED,
                _C.PORT_IN_USE,
                _C.ADDRESS_INVALID,
                _C.HOME_IN_USE,
                _C.HOME_UNUSABLE,
                _C.NODE_NOT_RUNNING,
                _C.NODE_UNRESPONSIVE,
                _C.IDENTITY_DUPLICATED,
                _C.OWNER_KEY_MISSING,
                _C.OWNER_KEY_EXISTS,
                _C.PASSPHRASE_MISSING,
                _C.PASSPHRASE_WRONG,
                _C.CLAIM_INVALID,
                _C.PACKAGE_INVALID,
                _C.INVITE_MALFORMED,
                _C.INVITE_EXPIRED,
                _C.INVITE_FOREIGN,
                _C.INVITE_MISSING,
                _C.INVITE_REVOKED,
                _C.INVITE_EXHAUSTED,
                _C.DISK_FULL,
                _C.HUB_UNREACHABLE,
                _C.HUB_REFUSED,
                _C.INTERNAL,
            ),
            HttpError(500, SERVER),
        ),
        # OpenAI's own ``model_not_found`` means a model name, ours means a file of the operator's
        _C.MODEL_NOT_FOUND: HttpError(500, SERVER, "model_file_not_found"),
    }
)


class RequestError(Refused):
    """A refusal that can name the parameter at fault, such as ``messages[0].content``."""

    def __init__(self, code: ErrorCode, message: str, param: str | None = None) -> None:
        super().__init__(code, message)
        self.param = param


def invalid_parameter(param: str, message: str) -> RequestError:
    """A 400 for a parameter whose type or value is wrong."""
    return RequestError(ErrorCode.REQUEST_INVALID, message, param)


def unsupported_parameter(param: str, message: str) -> RequestError:
    """A 400 for a parameter, or a value of one, that this node does not implement."""
    return RequestError(ErrorCode.PARAMETER_UNSUPPORTED, message, param)


def http_error(error: P2PMeshError) -> HttpError:
    """The row of an error's code."""
    return HTTP_ERRORS[error.code]


def error_body(error: P2PMeshError, prompt_param: str | None = None) -> dict[str, Any]:
    """The JSON object of an error; ``prompt_param`` is the name that the endpoint gives to its prompt."""
    row = http_error(error)
    return {
        "error": {
            "message": error.message,
            "type": row.type,
            "param": _param(error, prompt_param),
            "code": row.api_code or error.code.value,
        }
    }


def _param(error: P2PMeshError, prompt_param: str | None) -> str | None:
    if isinstance(error, RequestError) and error.param is not None:
        return error.param
    if error.code is ErrorCode.MODEL_UNKNOWN:
        return "model"
    if error.code is ErrorCode.LOGIT_BIAS_INVALID:
        return "logit_bias"
    if error.code is ErrorCode.CONTEXT_LENGTH_EXCEEDED:
        return prompt_param
    return None


def error_headers(error: P2PMeshError, retry_after_s: int) -> list[tuple[bytes, bytes]]:
    """The headers an error adds to its answer; ``retry_after_s`` where the error itself tells no time."""
    if http_error(error).status in RETRIABLE_STATUSES:
        return [(b"retry-after", str(bounded_retry_after_s(error.retry_after_s or retry_after_s)).encode())]
    if http_error(error).status == 401:
        return [(b"www-authenticate", b"Bearer")]
    return []


def error_of(raised: Exception) -> P2PMeshError | None:
    """The project's error in ``raised``, which may be a group of a nursery; None if there is none."""
    if isinstance(raised, P2PMeshError):
        return raised
    if isinstance(raised, ExceptionGroup):
        for inner in raised.exceptions:
            found = error_of(inner)
            if found is not None:
                return found
    return None
