"""The ReAct graph, its state, and how a run that a process left is taken up again."""

from langgraph_idem.react.agent import create_react_agent
from langgraph_idem.react.graph import ReActGraph
from langgraph_idem.react.recovery import Recovery, arecover, recover
from langgraph_idem.react.repair import arepair, repair
from langgraph_idem.react.state import ReActState, RunStatus

__all__ = [
    "ReActGraph",
    "ReActState",
    "Recovery",
    "RunStatus",
    "arecover",
    "arepair",
    "create_react_agent",
    "recover",
    "repair",
]
