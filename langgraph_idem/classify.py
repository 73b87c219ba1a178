"""What an exception of a remote tool says about the world, where its library documents it.

Libraries are recognised by name, so that none of them is imported here. Sources: the exception
hierarchies of httpx, requests and urllib3, aiohttp, the Stripe SDK, botocore, smtplib; RFC 9110
section 15.5 for the statuses. Whatever is not listed may have happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from langgraph_idem.effects import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOT_SENT: Final = frozenset(
    {
        "builtins.ConnectionRefusedError",
        "socket.gaierror",
        "httpx.ConnectError",
        "httpx.ConnectTimeout",
        "httpx.PoolTimeout",
        "httpx.UnsupportedProtocol",
        "httpx.InvalidURL",
        "httpcore.ConnectError",
        "httpcore.ConnectTimeout",
        "requests.ConnectTimeout",
        "requests.InvalidURL",
        "requests.InvalidSchema",
        "requests.MissingSchema",
        "urllib3.NewConnectionError",
        "urllib3.ConnectTimeoutError",
        "urllib3.NameResolutionError",
        "urllib3.LocationParseError",
        "aiohttp.ClientConnectorError",
        "aiohttp.InvalidURL",
        "botocore.EndpointConnectionError",
        "botocore.ConnectTimeoutError",
        "botocore.NoCredentialsError",
        "botocore.PartialCredentialsError",
        "botocore.NoRegionError",
        "botocore.ParamValidationError",
        "smtplib.SMTPConnectError",
        "smtplib.SMTPHeloError",
        "smtplib.SMTPAuthenticationError",
        "smtplib.SMTPNotSupportedError",
    }
)
"""The request never left this machine, or never got past the greeting."""

_REFUSED: Final = frozenset(
    {
        "smtplib.SMTPRecipientsRefused",
        "smtplib.SMTPSenderRefused",
        "smtplib.SMTPDataError",
        "stripe.CardError",
    }
)

_UNKNOWN: Final = frozenset({"stripe.IdempotencyError"})
"""The key is taken: by an earlier request whose outcome this exception does not tell."""

_NOT_TAKEN_UP: Final = frozenset({401, 403, 407, 429})
"""Statuses by which a provider turns the request away unread: mend the cause, then try again."""
_MAY_HAVE_HAPPENED: Final = frozenset({408, 409, 425, 499})
"""Statuses below 500 that do not say that nothing happened (409: a twin may be in progress)."""
_THROTTLED: Final = frozenset(
    {"Throttling", "ThrottlingException", "RequestThrottled", "TooManyRequestsException"}
    | {"ProvisionedThroughputExceededException", "RequestLimitExceeded", "SlowDown"}
)


def classify(error: BaseException) -> Verdict:
    """Say what an exception means: not sent, refused for good, or unknown.

    Args:
        error: What the remote tool raised.

    Returns:
        ``NOT_SENT`` only where the library documents that no request left; ``REFUSED`` for a 4xx
        answer; ``UNKNOWN`` for a time-out, a reset, a 5xx, and anything else.

    """
    names = set(_names(error))
    if names & _UNKNOWN or _was_repeated(error):
        return Verdict.UNKNOWN
    if (status := _status(error)) is not None:
        return _by_status(status, error)
    if names & _REFUSED:
        return Verdict.REFUSED
    if names & _NOT_SENT:
        return Verdict.NOT_SENT
    if (inner := _wrapped(error, names)) is not None:
        return classify(inner)
    return Verdict.UNKNOWN


def _by_status(status: int, error: BaseException) -> Verdict:
    if status in _NOT_TAKEN_UP or _aws_code(error) in _THROTTLED:
        return Verdict.NOT_SENT
    if status in _MAY_HAVE_HAPPENED or not 400 <= status < 500:  # noqa: PLR2004 - HTTP's classes
        return Verdict.UNKNOWN
    return Verdict.REFUSED


def _names(error: BaseException) -> Iterator[str]:
    """Name the exception's classes by package and class: ``httpx.ConnectError``."""
    for kind in type(error).__mro__:
        yield f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def _status(error: BaseException) -> int | None:
    """Find the HTTP status where these libraries keep it; None if there was no answer."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        response = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return response if isinstance(response, int) else None
    for holder, name in ((error, "http_status"), (response, "status_code"), (error, "status")):
        status = getattr(holder, name, None)
        if isinstance(status, int):
            return status
    return None


def _aws_code(error: BaseException) -> str | None:
    response = getattr(error, "response", None)
    return response.get("Error", {}).get("Code") if isinstance(response, dict) else None


def _was_repeated(error: BaseException) -> bool:
    """Tell whether the library sent the request more than once by itself.

    Then the last answer does not tell what an earlier sending did: a conditional write that was
    repeated finds its own row and says "condition failed".
    """
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return bool(response.get("ResponseMetadata", {}).get("RetryAttempts"))
    return "stripe.APIConnectionError" in set(_names(error)) and "retried" in str(error)


_WRAPPERS: Final = frozenset(
    {"requests.ConnectionError", "urllib3.MaxRetryError", "stripe.APIConnectionError"}
)


def _wrapped(error: BaseException, names: set[str]) -> BaseException | None:
    """Look inside exceptions that are known to do nothing but wrap another one."""
    if not names & _WRAPPERS:
        return None
    inside: list[Any] = [getattr(error, "reason", None), error.__cause__, *error.args]
    return next((one for one in inside if isinstance(one, BaseException)), None)
