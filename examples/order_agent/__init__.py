"""An agent that processes an order, dies at the worst moment, and comes back.

``python -m examples.order_agent`` shows it. Read ``tools.py`` first: it is what a user writes.
"""
