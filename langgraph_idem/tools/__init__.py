"""What knows LangChain and LangGraph: the call's context, the tool node, words for the model."""

from langgraph_idem.ledger import install_host
from langgraph_idem.tools.answers import answer
from langgraph_idem.tools.host import LangGraphHost
from langgraph_idem.tools.node import IdempotentToolNode
from langgraph_idem.tools.steps import DoneSteps, merge_steps

__all__ = ["DoneSteps", "IdempotentToolNode", "LangGraphHost", "answer", "merge_steps"]

install_host(LangGraphHost())
