"""The ledger's tables, its SQL, and the sites that run it. Nothing here knows LangChain."""
