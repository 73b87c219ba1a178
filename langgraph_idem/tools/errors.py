"""Which exceptions ToolNode may word for the model: the tools' own, never the ledger's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from langgraph.prebuilt.tool_node import _handle_tool_error, _infer_handled_types

from langgraph_idem.errors import IdempotencyError

if TYPE_CHECKING:
    from langgraph_idem.tools.context import RunningCall

HandleToolErrors = bool | str | Callable[..., str] | type[Exception] | tuple[type[Exception], ...]


def error_policy(
    users: HandleToolErrors, *, executing: Callable[[], RunningCall | None], wrapped: bool
) -> Callable[[Exception], str]:
    """Make the policy that ToolNode is given, from the one that the user gave.

    ToolNode would word the ledger's errors too ("Please fix the error and try again"), which
    could double an effect; so they are sorted out before it sees them. For all others the policy
    decides as ToolNode does by itself.

    Args:
        users: ``handle_tool_errors`` as the user gave it.
        executing: Returns the call whose tool raised; None if a wrapper around it did.
        wrapped: Whether the user has a wrapper around tool calls: ToolNode words whatever a
            wrapper raises, whether the policy names its type or not.

    """

    def policy(error: Exception) -> str:
        call = executing()
        is_ours = isinstance(error, IdempotencyError) or (call is not None and call.refused(error))
        is_taken = wrapped if call is None else isinstance(error, _types(users))
        if is_ours or not users or not is_taken:
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
