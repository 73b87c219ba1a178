"""What an exception of a remote tool says about the world, where its library documents it.

Libraries are recognised by name, so that none of them is imported here. Sources: the exception
hierarchies of httpx, requests and urllib3, aiohttp, the Stripe SDK, botocore, smtplib, nats-py;
RFC 9110 section 15.5 for the statuses. Whatever is not listed may have happened.

"Could not connect" proves nothing by itself: SDKs send again by themselves, and what surfaces is
the last sending's error. Only the traceback tells which sending it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from langgraph_idem.effects import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_NOT_SENT: Final = frozenset(
    {
        "builtins.ConnectionRefusedError",
        "socket.gaierror",
        "ssl.SSLCertVerificationError",
        *(
            f"{package}.{name}"
            for package in ("httpx", "httpx2")
            for name in ("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol")
        ),
        "httpx.InvalidURL",
        "httpx2.InvalidURL",
        "httpcore.ConnectError",
        "httpcore.ConnectTimeout",
        "httpcore.PoolTimeout",
        "httpcore.UnsupportedProtocol",
        "requests.ConnectTimeout",
        "requests.InvalidURL",
        "requests.InvalidSchema",
        "requests.InvalidHeader",
        "requests.MissingSchema",
        "urllib3.NewConnectionError",
        "urllib3.ConnectTimeoutError",
        "urllib3.NameResolutionError",
        "urllib3.LocationParseError",
        "aiohttp.ClientConnectorError",
        "aiohttp.InvalidURL",
        "botocore.EndpointConnectionError",
        "botocore.ConnectTimeoutError",
        "botocore.ProxyConnectionError",
        "botocore.NoCredentialsError",
        "botocore.PartialCredentialsError",
        "botocore.NoRegionError",
        "botocore.ParamValidationError",
        "smtplib.SMTPConnectError",
        "smtplib.SMTPHeloError",
        "smtplib.SMTPAuthenticationError",
        "smtplib.SMTPNotSupportedError",
        "nats.NoServersError",
        "nats.NoStreamResponseError",
        "stripe.RateLimitError",
    }
)
"""The request never left this machine, never got past the greeting, or was turned away unread."""

_REFUSED: Final = frozenset({"stripe.CardError"})

_UNKNOWN: Final = frozenset({"stripe.IdempotencyError"})
"""The key is taken: by an earlier request whose outcome this exception does not tell."""

_NOT_TAKEN_UP: Final = frozenset({401, 403, 407, 425, 429})
"""Statuses by which a provider turns the request away unread: mend the cause, then try again."""
_MAY_HAVE_HAPPENED: Final = frozenset({408, 409, 499})
"""Statuses below 500 that do not say that nothing happened (409: a twin may be in progress)."""
_THROTTLED: Final = frozenset(
    {"Throttling", "ThrottlingException", "RequestThrottled", "TooManyRequestsException"}
    | {"ProvisionedThroughputExceededException", "RequestLimitExceeded", "SlowDown"}
)
_IN_PROGRESS: Final = frozenset({"TransactionInProgressException", "TransactionConflictException"})

_SMTP_FINAL: Final = 500
"""SMTP replies from here on are a final no (RFC 5321 section 4.2.1); below, "try again later"."""

_CLIENTS: Final = frozenset(
    {"aiohttp", "botocore", "http", "httpcore", "httpx", "httpx2", "nats", "requests", "smtplib"}
    | {"stripe", "urllib3"}
)
_CUT_OFF: Final = frozenset(
    {"builtins.ConnectionResetError", "builtins.BrokenPipeError", "builtins.ConnectionAbortedError"}
)

_FIRST_TIME: Final[Mapping[tuple[str, str], Callable[[Mapping[str, Any]], bool]]] = {
    ("stripe._http_client", "_request_with_retries_internal"): lambda at: at["num_retries"] == 0,
    ("stripe._http_client", "_request_with_retries_internal_async"): lambda at: (
        at["num_retries"] == 0
    ),
    ("botocore.endpoint", "_send_request"): lambda at: at["attempts"] == 1,
    ("aiobotocore.endpoint", "_send_request"): lambda at: at["attempts"] == 1,
    ("urllib3.connectionpool", "urlopen"): lambda at: not getattr(at["retries"], "history", ()),
    ("requests.sessions", "resolve_redirects"): lambda _at: False,
    ("urllib.request", "http_error_302"): lambda _at: False,
    ("httpx._client", "_send_handling_redirects"): lambda at: not at["history"],
    ("aiohttp.client", "_request"): lambda at: not at["history"],
    ("tenacity", "__call__"): lambda at: at["retry_state"].attempt_number == 1,
    ("tenacity.asyncio", "__call__"): lambda at: at["retry_state"].attempt_number == 1,
}
"""Where libraries send, and how to tell from there that it was the first time."""

_SENDS_AGAIN: Final[Mapping[str, frozenset[str]]] = {
    "stripe.APIConnectionError": frozenset({"stripe._http_client"}),
    "botocore.EndpointConnectionError": frozenset({"botocore.endpoint", "aiobotocore.endpoint"}),
    "botocore.ConnectTimeoutError": frozenset({"botocore.endpoint", "aiobotocore.endpoint"}),
    "botocore.ProxyConnectionError": frozenset({"botocore.endpoint", "aiobotocore.endpoint"}),
    "requests.ConnectionError": frozenset({"urllib3.connectionpool"}),
    "urllib3.MaxRetryError": frozenset({"urllib3.connectionpool"}),
}
"""What these say is only true of a first sending; without its traceback nobody can know."""


def classify(error: BaseException) -> Verdict:
    """Say what an exception means: not sent, refused for good, or unknown.

    Args:
        error: What the remote tool raised, with its traceback.

    Returns:
        ``NOT_SENT`` only where the library documents that no request left; ``REFUSED`` for a 4xx
        answer; ``UNKNOWN`` for a time-out, a reset, a 5xx, and anything else.

    """
    verdict = _alone(error)
    if verdict is Verdict.UNKNOWN or not _is_first_sending(error):
        return Verdict.UNKNOWN
    was_lost = any(_is_lost(other) for other in _chain(error) if other is not error)
    return Verdict.UNKNOWN if was_lost else verdict


def _alone(error: BaseException) -> Verdict:
    """Classify an exception by itself, without what happened before it."""
    names = set(_names(error))
    if names & _UNKNOWN or _was_answered_before(error):
        return Verdict.UNKNOWN
    if names & _NOT_SENT and _status(error) is None:
        return Verdict.NOT_SENT
    if (code := _smtp_code(error, names)) is not None:
        return Verdict.REFUSED if code >= _SMTP_FINAL else Verdict.NOT_SENT
    if (status := _status(error)) is not None:
        return _by_status(status, error, names)
    if names & _REFUSED:
        return Verdict.REFUSED
    inner = _wrapped(error, names)
    return Verdict.UNKNOWN if inner is None else _alone(inner)


def _by_status(status: int, error: BaseException, names: set[str]) -> Verdict:
    code = _aws_code(error) or ""
    if status in _NOT_TAKEN_UP or code in _THROTTLED or "stripe.RateLimitError" in names:
        return Verdict.NOT_SENT
    is_taken = code.startswith("Idempoten") or code in _IN_PROGRESS
    if is_taken or status in _MAY_HAVE_HAPPENED or not 400 <= status < 500:  # noqa: PLR2004 - HTTP's
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


def _smtp_code(error: BaseException, names: set[str]) -> int | None:
    """Find the reply by which a mail server said no: to all recipients, the sender or the text."""
    if "smtplib.SMTPRecipientsRefused" in names:
        return min((code for code, _words in error.recipients.values()), default=None)  # type: ignore[attr-defined]  # smtplib's
    if names & {"smtplib.SMTPSenderRefused", "smtplib.SMTPDataError"}:
        return int(error.smtp_code)  # type: ignore[attr-defined]  # smtplib's
    return None


def _aws_code(error: BaseException) -> str | None:
    response = getattr(error, "response", None)
    return response.get("Error", {}).get("Code") if isinstance(response, dict) else None


def _was_answered_before(error: BaseException) -> bool:
    """Tell whether the answer came to a later request than the one that matters.

    The SDK sent again by itself (a conditional write that is repeated finds its own row and says
    "condition failed"), or the provider redirected after it had acted.
    """
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return bool(response.get("ResponseMetadata", {}).get("RetryAttempts"))
    retries = getattr(getattr(response, "raw", None), "retries", None)
    return bool(getattr(response, "history", None) or getattr(retries, "history", None))


def _is_first_sending(error: BaseException) -> bool:
    """Tell from the traceback that the library had not sent before; unknown is no."""
    sendings = [
        (module, is_first(frame_locals))
        for module, name, frame_locals in _frames(error)
        if (is_first := _FIRST_TIME.get((module, name))) is not None
    ]
    seen = {module for module, _ in sendings}
    wanted = [_SENDS_AGAIN[name] for name in _names(error) if name in _SENDS_AGAIN]
    return all(first for _, first in sendings) and all(modules & seen for modules in wanted)


def _frames(error: BaseException) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Walk the places where the library sends, in the tracebacks of an exception and its causes."""
    for one in _chain(error):
        step = one.__traceback__
        while step is not None:
            frame, step = step.tb_frame, step.tb_next
            place = (str(frame.f_globals.get("__name__")), frame.f_code.co_name)
            if place in _FIRST_TIME:
                yield (*place, frame.f_locals)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, what it wraps, and what was being dealt with when it was raised."""
    found: list[BaseException] = []
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if any(one is known for known in found):
            continue
        found.append(one)
        yield one
        inside = (one.__cause__, one.__context__, getattr(one, "reason", None), *one.args)
        waiting += [other for other in inside if isinstance(other, BaseException)]


def _is_lost(error: BaseException) -> bool:
    """Tell whether an exception that was dealt with before says that a request may have arrived."""
    names = set(_names(error))
    if names & _CUT_OFF:
        return True
    is_clients = type(error).__module__.partition(".")[0] in _CLIENTS
    return is_clients and _alone(error) is Verdict.UNKNOWN


_WRAPPERS: Final = frozenset(
    {"requests.ConnectionError", "urllib3.MaxRetryError", "urllib3.SSLError", "urllib.URLError"}
    | {"stripe.APIConnectionError"}
)


def _wrapped(error: BaseException, names: set[str]) -> BaseException | None:
    """Look inside exceptions that are known to do nothing but wrap another one."""
    if not names & _WRAPPERS:
        return None
    inside: list[Any] = [getattr(error, "reason", None), error.__cause__, *error.args]
    return next((one for one in inside if isinstance(one, BaseException)), None)
