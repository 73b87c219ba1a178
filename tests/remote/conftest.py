"""The remotes' fixtures, for every test in this folder."""

from tests.support.remotes.fixtures import *  # noqa: F403 - fixtures are found by their names here
