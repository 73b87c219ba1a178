"""What an effect costs beside what it is made of; run ``python -m benchmarks --help``.

Each figure is a ratio to a baseline that is measured in the same run, turn by turn, because the
absolute numbers of a machine that others use say little.
"""
