"""A machine that kills, freezes, cuts and fills, and then counts.

``python -m tests.proof.machine --kills 100 --seed 7`` runs it; docs/explanation/proof.md says what
it shows. Nothing in here knows how the ledger works, but for the names of its table's columns.
"""
