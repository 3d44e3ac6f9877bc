"""Writes files and folders completely or not at all, after checks before the work."""

import errno
import fcntl
import hashlib
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)

FULL = (errno.ENOSPC, errno.EDQUOT)
REFUSED = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.EFBIG),
    *(errno.EISDIR, errno.ENOTDIR, errno.ENOENT, errno.EEXIST, errno.ENAMETOOLONG),
    errno.ELOOP,
)

LONGEST_NAME = 120  # bytes of what ``slug`` makes
MARGIN_BYTES = 2**17  # left free by ``check_space``, for other files


def new_file(path: str | Path) -> Path:
    """Return the path of a file that is about to be written, and make its folder if need be. Raises
    ``FileExistsError`` if it exists, and ``OSError`` if it cannot be written."""
    path = Path(path).expanduser()
    if os.path.lexists(path):
        raise FileExistsError(f"{path} exists; choose another name or move it away")
    writable_folder(path.parent)
    return path


def new_folder(path: str | Path) -> Path:
    """Call ``new_file`` for a folder, which may exist if it is empty."""
    path = Path(path).expanduser()
    is_empty = path.is_dir() and not path.is_symlink() and not any(path.iterdir())
    return path if is_empty else new_file(path)


def writable_folder(folder: str | Path) -> Path:
    """Make a folder if need be. Raises ``OSError`` if nothing can be written there."""
    folder = Path(folder)
    with explained_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    check_place(folder)
    return folder


def check_place(folder: Path) -> None:
    """Raise ``OSError`` if a folder cannot be written to, or made if it does not exist."""
    with explained_errors(folder):
        there = next(p for p in (folder, *folder.absolute().parents) if os.path.lexists(p))
        with tempfile.TemporaryFile(dir=there) as probe:
            probe.write(b"0")


@contextmanager
def whole_file(path: str | Path, needed: int = 0) -> Iterator[Path]:
    """Yield a path beside ``path`` to write to; sync and rename it at the end. At any moment the
    complete old file or the complete new one exists. After an error the old one stays.

    needed: the number of bytes that it will take, if that is known.
    """
    path = Path(path)
    partial = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        with explained_errors(path, needed):
            yield partial
            put(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text as a ``whole_file``."""
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def whole_folder(path: str | Path) -> Iterator[Path]:
    """Yield a new folder beside ``path`` to write to; sync and rename it at the end. The folder is
    complete or does not exist. After an error nothing of it is left."""
    path = new_folder(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with explained_errors(path):
            partial.mkdir()
            yield partial
            for inside in partial.rglob("*"):
                _sync(inside)
            new_folder(path)  # another program may have made it meanwhile
            put(partial, path)
    except DiskFull:  # the error names a file that is about to be deleted
        raise disk_full(path) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def locked(folder: Path, otherwise: str) -> Iterator[None]:
    """Lock a folder for the block. Raises ``ValueError``, with the text ``otherwise``, if another
    process holds the lock, which ends with its process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        take_lock(descriptor, folder, otherwise)
        yield
    finally:
        os.close(descriptor)


def take_lock(descriptor: int, folder: Path, otherwise: str) -> None:
    """Lock an open folder until it is closed. Where the file system has no locks, warns."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"{folder}: {otherwise}") from None
    except OSError as error:
        log.warning(f"{folder}: no lock ({error.strerror}); use it only once at a time")


@contextmanager
def one_at_a_time(path: Path, waiting: str) -> Iterator[None]:
    """Let only one process at a time be in the block, by a lock file at ``path``. The others wait,
    and log the sentence ``waiting``. Raises ``OSError`` if there is a link or a folder."""
    with explained_errors(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with os.fdopen(descriptor, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info(waiting)
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            log.warning(f"{path}: no lock ({error.strerror}); use it only once at a time")
        yield


def put(partial: Path, path: Path) -> None:
    """Rename a finished file or folder; after a power failure it is complete or does not exist."""
    _sync(partial)
    partial.replace(path)
    _sync(path.parent)


def check_space(path: Path, needed: int) -> None:
    """Raise ``OSError`` if there is no room for so many more bytes beside ``path``. Call it before
    HDF5 writes, because HDF5 crashes on a full disk."""
    needed += MARGIN_BYTES
    if shutil.disk_usage(path.parent).free < needed:
        raise disk_full(path, needed)


def keep(path: Path, other: Path) -> None:
    """Link the file at ``path`` as ``other`` too, so that it stays there when replaced."""
    link = other.with_name(f".{other.stem}.{os.getpid()}.partial{other.suffix}")
    try:
        os.link(path, link)
        link.replace(other)
    except OSError:  # a file system without links
        path.replace(other)
    finally:
        link.unlink(missing_ok=True)  # left over if both named the same file already


@contextmanager
def explained_errors(path: Path, needed: int = 0) -> Iterator[None]:
    """Let errors of writing ``path`` name a remedy. Other errors pass unchanged."""
    try:
        yield
    except Exception as error:
        number = _error_number(error)
        if number in FULL:
            raise disk_full(path, needed) from None
        if number in REFUSED:
            raise OSError(
                f"{path}: cannot be written ({os.strerror(number)}); choose another folder, or ask "
                "for the right to write there"
            ) from None
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class DiskFull(OSError):
    """There is no room for a file."""


def disk_full(path: Path, needed: int = 0) -> DiskFull:
    """Make the error that says that there is no room for ``path``."""
    wants = f"at least {needed / 1e6:.3g} MB are needed" if needed else "more is needed"
    free = shutil.disk_usage(next(p for p in (path, *path.absolute().parents) if p.is_dir())).free
    return DiskFull(
        f"{path}: disk full: {free / 1e6:.3g} MB are free there, and {wants}; free some space. "
        "What was there before is untouched"
    )


def _error_number(error: BaseException | None) -> int | None:
    """Find the number of the system's error that led to this one: torch and HDF5 wrap it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error.errno
        if os.strerror(errno.ENOSPC) in str(error):
            return errno.ENOSPC
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


def slug(name: str) -> str:
    """Turn any name into a file name. A digest replaces characters that are lost."""
    found = re.sub(r"[^\w.+=-]+", "_", name).strip("._")
    if found == name and len(found.encode()) <= LONGEST_NAME:
        return found
    short = found.encode()[:LONGEST_NAME].decode(errors="ignore")
    return f"{short}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
