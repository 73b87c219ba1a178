"""Effects of LangGraph tools that take hold exactly once."""
