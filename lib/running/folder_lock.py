"""One process at a time in a run folder.

Two of them would cut each other's event files and delete each other's checkpoints. The lock is the
operating system's. It ends with its process, even if that is killed, and the processes that a run
starts do not inherit it. So the file that stays behind locks nothing: it names the last holder.
"""

import errno
import os
import platform
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

FILE = "lock"
NAME_AT = 1  # byte: Windows lets nobody else read byte 0, which is locked
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


class InUseError(OSError):
    """Another process has the run folder; the message names it in one line."""


def hold(folder: Path) -> FileLock | None:
    """Lock a run folder until this process ends, or the lock is deleted.

    Returns:
        The lock; None if the file system has no locks, as some network file systems.

    Raises:
        InUseError: another process has locked it.
        OSError: the folder is not writable.
    """
    return _lock(folder, _sign)


def check_free(folder: Path) -> None:
    """Change nothing, and raise ``InUseError`` if a process has locked the run folder."""
    if (folder / FILE).exists() and (lock := _lock(folder)):
        lock.release()


def _lock(folder: Path, then: Callable[[int], None] | None = None) -> FileLock | None:
    lock = FileLock(
        folder / FILE,
        blocking=False,
        thread_local=False,
        fallback_to_soft=False,  # that would be a file that a killed process leaves locked
        preserve_lock_file=True,
        on_acquired=then,
    )
    try:
        lock.acquire()
    except Timeout:
        holder = _holder(folder) or "another process"
        raise InUseError(f"{folder} is in use: {holder} has not ended") from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return None
    return lock


def _sign(descriptor: int) -> None:
    name = f"process {os.getpid()} on {platform.node()}".encode()
    os.lseek(descriptor, NAME_AT, os.SEEK_SET)
    os.write(descriptor, name)
    os.ftruncate(descriptor, NAME_AT + len(name))


def _holder(folder: Path) -> str:
    with open(folder / FILE, "rb", buffering=0) as file:
        file.seek(NAME_AT)
        return file.read().decode()
