"""For the tests of those who use the library."""

from langgraph_idem.testing.models import ScriptedChatModel

__all__ = ["ScriptedChatModel"]
