"""Errors in OpenAI's shape: {"error": {message, type, param, code}} with a status, on every route."""

import json
from collections.abc import Mapping
from typing import Any

from heddle.core import ConfigError, DataError, HeddleError, UsageError
from heddle.serving import Cancelled, DeadlineExceeded, QueueFull

TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
RETRY_AFTER = {429: "1", 503: "2"}  # seconds


class ApiError(Exception):
    """An error with its status."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    @classmethod
    def of(cls, error: Exception) -> "ApiError":
        """Return any error as one for the client; what is nobody's business stays in the log."""
        match error:
            case ApiError():
                return error
            case QueueFull():
                return cls(429, str(error), code="rate_limit_exceeded")
            case Cancelled():
                return cls(503, "the server is shutting down", code="shutting_down")
            case DeadlineExceeded():
                return cls(503, str(error), code="timeout")
            case ConfigError():
                return cls(400, str(error), param=error.field or None)
            case UsageError() | DataError():
                name, colon, _ = str(error).partition(":")
                return cls(400, str(error), param=name if colon and name.isidentifier() else None)
            case HeddleError():
                return cls(500, "the model could not compute an answer", code="model_error")
        return cls(500, "internal error", code="internal_error")

    @property
    def body(self) -> dict[str, Any]:
        """Return the body of the response."""
        kind = TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        kind = "rate_limit_error" if self.status == 429 else kind
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of the response."""
        found = {"Retry-After": RETRY_AFTER[self.status]} if self.status in RETRY_AFTER else {}
        return found | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


def to_json(value: Mapping[str, Any]) -> bytes:
    """Return a value as JSON; a number that JSON does not have is an error of ours."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
