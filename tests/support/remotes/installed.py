"""Where install.sh put the servers that stand for remotes."""

import os
import shutil
from pathlib import Path

INSTALL = "bash tests/support/remotes/install.sh"


class NotInstalledError(RuntimeError):
    """A server program is missing; the message names the command that installs it."""


def root() -> Path:
    """The folder that install.sh fills.

    Returns:
        ``$LANGGRAPH_IDEM_REMOTES``, else ``langgraph-idem-tests`` in the user's cache folder.
    """
    chosen = os.environ.get("LANGGRAPH_IDEM_REMOTES")
    if chosen:
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "langgraph-idem-tests"


def program(name: str) -> str:
    """The path of a program in the servers' own environment.

    Args:
        name: file name of the program, such as ``mitmdump``.

    Returns:
        The absolute path.

    Raises:
        NotInstalledError: it is not there; run the command in the message.
    """
    return str(_there(root() / "servers" / "bin" / name))


def npm_file(path: str) -> str:
    """The path of a file of an installed npm package.

    Args:
        path: path under ``node_modules``.

    Returns:
        The absolute path.

    Raises:
        NotInstalledError: it is not there; run the command in the message.
    """
    return str(_there(root() / "npm" / "node_modules" / path))


def node() -> str:
    """The path of node.

    Returns:
        The absolute path.

    Raises:
        NotInstalledError: no node on the PATH; install node 20 or newer.
    """
    found = shutil.which("node")
    if found is None:
        raise NotInstalledError("node is not on the PATH; install node >= 20 with npm")
    return found


def _there(path: Path) -> Path:
    if not path.exists():
        raise NotInstalledError(f"{path} is missing; run: {INSTALL}")
    return path
