"""Reads files of a folder that somebody else made, and writes a folder that is never half there.

Reading: plain files only, of a size that was checked before a byte is read; no link is followed, no device
or pipe opened, nothing unpickled, no memory asked for on the word of a header. All that can be wrong is a
BundleError.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

MOST_JSON_BYTES = 32 << 20
MOST_TOKENS = 64 << 20
_HEADER_BYTES = 1 << 16


class BundleError(Exception):
    """A bundle that cannot be read, or written; the message says where and why."""


class Folder:
    """An open folder; its files by their plain names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "not a path"
            raise BundleError(f"{path}: {why}; a bundle is a folder") from error

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def has(self, name: str) -> bool:
        """Whether anything of that name is there."""
        try:
            os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise BundleError(f"{self.path / name}: {error.strerror}") from error
        return True

    def read(self, name: str, most_bytes: int) -> bytes:
        """All of a plain file of at most that size. Raises BundleError."""
        where = self.path / name
        try:
            # a pipe would block the open, and a link would lead out of the folder
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._fd)
        except OSError as error:
            link = self._is_link(name)
            why = "a link; plain files only are read" if link else error.strerror
            raise BundleError(f"{where}: {why}") from error
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise BundleError(f"{where}: not a plain file")
            if found.st_size > most_bytes:
                raise BundleError(f"{where}: {found.st_size:,} bytes; at most {most_bytes:,} are read")
            with os.fdopen(os.dup(fd), "rb") as file:
                content = file.read(most_bytes + 1)
        except OSError as error:
            raise BundleError(f"{where}: {error.strerror}") from error
        finally:
            os.close(fd)
        if len(content) > most_bytes:
            raise BundleError(f"{where}: grew while it was read")
        return content

    def _is_link(self, name: str) -> bool:
        with contextlib.suppress(OSError):
            return stat.S_ISLNK(os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mode)
        return False

    def array(self, name: str, dtype: str, most: int = MOST_TOKENS) -> npt.NDArray[np.generic]:
        """A .npy file of one dimension and exactly that dtype, at most so many entries."""
        where, wanted = self.path / name, np.dtype(dtype)
        content = self.read(name, _HEADER_BYTES + most * wanted.itemsize)
        file = io.BytesIO(content)
        try:
            version = np.lib.format.read_magic(file)
            if version != (1, 0):
                raise ValueError(f"format version {version}, 1.0 is wanted")
            shape, fortran, found = np.lib.format.read_array_header_1_0(file)
        except Exception as error:  # a foreign header can fail in any way NumPy's parser has
            raise BundleError(f"{where}: no NumPy array: {' '.join(str(error).split())[:200]}") from error
        if found != wanted or fortran or len(shape) != 1 or type(shape[0]) is not int:
            raise BundleError(
                f"{where}: an array of {str(found)[:80]}, shape {str(shape)[:80]}; {wanted} of one dimension "
                "is wanted"
            )
        size = len(content) - file.tell()
        if shape[0] < 0 or size != shape[0] * wanted.itemsize:
            raise BundleError(f"{where}: {size:,} bytes of data for {str(shape[0])[:20]} entries of {wanted}")
        return np.frombuffer(content, wanted, offset=file.tell()).copy()


def npy(array: npt.NDArray[np.generic], dtype: str) -> bytes:
    """A one-dimensional array as the bytes of a .npy file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.ascontiguousarray(array, dtype), version=(1, 0), allow_pickle=False)
    return file.getvalue()


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Make a folder with these files, all of it or nothing. Raises BundleError; nothing is ever replaced."""
    if os.path.lexists(path):
        raise BundleError(f"{path}: is there already; name a folder that is not")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _sibling(path) as partial:
            for name, content in files.items():
                with (partial / name).open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            partial.chmod(0o755)
            partial.rename(path)
            _sync(path.parent)
    except OSError as error:
        size = sum(len(content) for content in files.values())
        raise BundleError(
            f"{path}: {error.strerror or error} (the bundle takes {size:,} bytes); nothing was left behind"
        ) from error


@contextlib.contextmanager
def _sibling(path: Path) -> Iterator[Path]:
    """A temporary folder beside ``path``, gone at the end unless it was renamed."""
    partial = Path(tempfile.mkdtemp(prefix=f".{path.name[:80]}.", suffix=".partial", dir=path.parent))
    try:
        yield partial
    finally:
        if partial.exists():
            shutil.rmtree(partial, ignore_errors=True)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
