"""Which exceptions ToolNode may word for the model: the tools' own, never the ledger's."""

from __future__ import annotations

from collections.abc import Callable

from langgraph.prebuilt.tool_node import _handle_tool_error, _infer_handled_types

from langgraph_idem.errors import IdempotencyError

HandleToolErrors = bool | str | Callable[..., str] | type[Exception] | tuple[type[Exception], ...]


def error_policy(
    users: HandleToolErrors, *, executing: Callable[[], bool], wrapped: bool
) -> Callable[[Exception], str]:
    """Make the policy that ToolNode is given, from the one that the user gave.

    ToolNode would word the ledger's errors too ("Please fix the error and try again"), which
    could double an effect; so they are sorted out before it sees them. For all others the policy
    decides as ToolNode does by itself.

    Args:
        users: ``handle_tool_errors`` as the user gave it.
        executing: Tells whether the exception comes from the tool itself.
        wrapped: Whether the user has a wrapper around tool calls: ToolNode words whatever a
            wrapper raises, whether the policy names its type or not.

    """

    def policy(error: Exception) -> str:
        if isinstance(error, IdempotencyError) or not users:
            raise error
        is_taken = isinstance(error, _types(users)) if executing() else wrapped
        if not is_taken:
            raise error
        return _handle_tool_error(error, flag=users)

    return policy


def _types(users: HandleToolErrors) -> tuple[type[Exception], ...]:
    if isinstance(users, type):
        return (users,)
    if isinstance(users, tuple):
        return users
    if callable(users):
        return _infer_handled_types(users)
    return (Exception,)
