"""Effects of LangGraph tools that take hold exactly once."""

from langgraph_idem.effects import Effect, EffectRecord, Kind, Origin, Receipt, Relation, State
from langgraph_idem.errors import (
    AlreadyDone,
    ArgumentsChanged,
    ConfigurationError,
    EffectBusy,
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
    create_react_agent,
    recover,
)
from langgraph_idem.tools import DoneSteps, IdempotentToolNode, merge_steps

__all__ = [
    "PER_CALL",
    "AlreadyDone",
    "ArgumentsChanged",
    "ConfigurationError",
    "DoneSteps",
    "Effect",
    "EffectBusy",
    "EffectRecord",
    "IdempotencyError",
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
    "State",
    "TransitionForbidden",
    "arecover",
    "create_react_agent",
    "merge_steps",
    "recover",
]
