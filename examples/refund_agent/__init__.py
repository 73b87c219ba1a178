"""A refund agent that is killed after the provider acted and before that was written down."""
