"""Which file system a file is on, as far as Linux tells."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

_MOUNTS: Final = Path("/proc/self/mountinfo")
_NETWORK: Final = frozenset(
    {
        *("nfs", "nfs3", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "coda"),
        *("ceph", "glusterfs", "lustre", "gpfs", "beegfs", "pvfs2", "orangefs", "panfs"),
        *("sshfs", "s3fs", "rclone", "gcsfuse", "goofys", "blobfuse2", "davfs", "curlftpfs"),
    }
)
"""By the names that mounts have, without ``fuse.`` before them."""


def network_file_system(file: str) -> str | None:
    """Return the kind of network file system that a file is on.

    Args:
        file: Its path in full, without symbolic links, as SQLite gives it.

    Returns:
        The kind as the mount says it, or None: it is a local one, or nobody can tell (there is no
        ``/proc/self/mountinfo``, or it is a local mount of what another machine serves).

    """
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    kind = _kind_of(file, mounts)
    return kind if kind.removeprefix("fuse.") in _NETWORK else None


def _kind_of(path: str, mounts: str) -> str:
    """Find the mount that a path is under: the longest, and of two at one place the later."""
    longest, kind = "", ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = _unescaped(before.split(" ")[4])
        if len(point) >= len(longest) and os.path.commonpath([point, path]) == point:
            longest, kind = point, after.split(" ")[0]
    return kind


def _unescaped(point: str) -> str:
    """Read a path as the kernel writes it: blanks and backslashes in octal."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), point)
