"""For the tests of those who use the library: a model, crashes, faults, and what they leave."""

from langgraph_idem.testing.checkpointers import (
    FaultyCheckpointer,
    WriteFault,
    dying,
    failing,
    slow,
)
from langgraph_idem.testing.crashes import Crash, Crashed, Step, crash, kill
from langgraph_idem.testing.models import ScriptedChatModel
from langgraph_idem.testing.records import aage, aassert_effect_once, age, assert_effect_once

__all__ = [
    "Crash",
    "Crashed",
    "FaultyCheckpointer",
    "ScriptedChatModel",
    "Step",
    "WriteFault",
    "aage",
    "aassert_effect_once",
    "age",
    "assert_effect_once",
    "crash",
    "dying",
    "failing",
    "kill",
    "slow",
]
