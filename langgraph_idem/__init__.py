"""Effects of LangGraph tools that take hold exactly once."""

from typing import TYPE_CHECKING, Any

from langgraph_idem.advice import DurabilityWarning, IdempotencyWarning, SharedFileWarning
from langgraph_idem.effects import (
    ABSENT,
    DONT_KNOW,
    Effect,
    EffectRecord,
    Found,
    Kind,
    Origin,
    Receipt,
    Relation,
    State,
    Verdict,
)
from langgraph_idem.errors import (
    AlreadyDone,
    ApprovalRejected,
    ArgumentsChanged,
    ConfigurationError,
    EffectBusy,
    ErrorReported,
    IdempotencyError,
    InvalidArguments,
    InvalidCall,
    LedgerError,
    MissingKey,
    OutcomeUnknown,
    RecordedFailure,
    ResultNotStorable,
    TransitionForbidden,
)
from langgraph_idem.keys import PER_CALL
from langgraph_idem.ledger import Ledger
from langgraph_idem.react import (
    ReActGraph,
    ReActState,
    Recovery,
    RunStatus,
    arecover,
    arepair,
    create_react_agent,
    recover,
    repair,
)
from langgraph_idem.tools import DoneSteps, IdempotentToolNode, answer, merge_steps

if TYPE_CHECKING:
    from langgraph_idem.tools.middleware import IdempotencyMiddleware as IdempotencyMiddleware

__all__ = [
    "ABSENT",
    "DONT_KNOW",
    "PER_CALL",
    "AlreadyDone",
    "ApprovalRejected",
    "ArgumentsChanged",
    "ConfigurationError",
    "DoneSteps",
    "DurabilityWarning",
    "Effect",
    "EffectBusy",
    "EffectRecord",
    "ErrorReported",
    "Found",
    "IdempotencyError",
    "IdempotencyWarning",
    "IdempotentToolNode",
    "InvalidArguments",
    "InvalidCall",
    "Kind",
    "Ledger",
    "LedgerError",
    "MissingKey",
    "Origin",
    "OutcomeUnknown",
    "ReActGraph",
    "ReActState",
    "Receipt",
    "RecordedFailure",
    "Recovery",
    "Relation",
    "ResultNotStorable",
    "RunStatus",
    "SharedFileWarning",
    "State",
    "TransitionForbidden",
    "Verdict",
    "answer",
    "arecover",
    "arepair",
    "create_react_agent",
    "merge_steps",
    "recover",
    "repair",
]


def __getattr__(name: str) -> Any:
    """Import what needs LangChain when it is asked for, not before."""
    if name != "IdempotencyMiddleware":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import langchain.agents.middleware.types  # noqa: F401 - not there before LangChain 1
    except ImportError as error:
        raise ImportError(
            'IdempotencyMiddleware needs LangChain 1.4: pip install "langgraph-idem[langchain]"'
        ) from error
    from langgraph_idem.tools.middleware import IdempotencyMiddleware

    return IdempotencyMiddleware
