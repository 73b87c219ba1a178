"""The figures by name; each takes the database and the size, and returns what it measured."""
