"""Files in object stores, by addresses such as ``s3://bucket/photos``, with fsspec, which comes with PyTorch.

``Path`` makes one slash of two, so ``s3:/bucket/photos`` stands for the address, too, and paths in a store are made as
those in a folder. What is written is there as a whole or not at all. All that goes wrong is an ``OSError``.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from deepmatching.errors import DeepMatchingError

#: The scheme of an address; a drive of Windows has one letter.
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):[/\\]+")
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
_FOLDERS = ("file", "local")  #: Schemes of folders on a disk, which have paths.
#: What stores call the time of a file, and a digest of its content.
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created")
_DIGESTS = ("ETag", "etag", "md5Hash")


def scheme_of(path: object) -> str:
    """Return the scheme of an address, such as ``s3``; an empty text for a path of a folder or of a file."""
    found = _ADDRESS.match(str(path))
    return found[1] if found else ""


def shown(path: object) -> str:
    """Return an address with two slashes, or a path as it is."""
    scheme = scheme_of(path)
    return _ADDRESS.sub(f"{scheme}://", str(path).replace("\\", "/"), count=1) if scheme else str(path)


def check_address(address: object) -> None:
    """Raise unless there is a program for the store of an address."""
    import fsspec

    scheme = scheme_of(address)
    if scheme in _FOLDERS:
        raise DeepMatchingError(f"'{shown(address)}' is on a disk: give its path, without {scheme}://.")
    try:
        fsspec.get_filesystem_class(scheme)
    except ImportError:
        package = _PACKAGES.get(scheme, f"the package of fsspec for {scheme}")
        raise DeepMatchingError(f"{scheme}:// needs {package}: install it with pip install {package}.") from None
    except ValueError:
        raise DeepMatchingError(f"'{shown(address)}' is no address of a store: give s3://, gs:// or a path.") from None


def read_address(address: object, max_bytes: int = -1) -> bytes:
    """Return the content of a file, or its first bytes."""
    with _store(address) as (store, key):
        return bytes(store.cat_file(key, **({} if max_bytes < 0 else {"start": 0, "end": max_bytes})))


def write_address(address: object, content: bytes | memoryview) -> None:
    """Write a file, at once and as a whole."""
    with _store(address) as (store, key):
        store.pipe_file(key, bytes(content))


def remove_address(address: object) -> None:
    """Remove a file, if it is there."""
    with contextlib.suppress(FileNotFoundError), _store(address) as (store, key):
        store.rm_file(key)


def exists_address(address: object) -> bool:
    """Return whether there is a file."""
    try:
        with _store(address) as (store, key):
            return bool(store.info(key)["type"] == "file")
    except FileNotFoundError:
        return False


def list_address(address: object) -> dict[str, str]:
    """Return the names of all files below an address, and the size, the time and a digest of each.

    A store tells a thousand at once.
    """
    with _store(address) as (store, key):
        root = key.rstrip("/") + "/"
        try:
            found = store.find(root, detail=True)
        except FileNotFoundError:
            found = {}
    stamps = {}
    for path, about in found.items():
        time, digest = (next((about[name] for name in names if name in about), "") for names in (_TIMES, _DIGESTS))
        stamps[path.removeprefix(root)] = f"{about['size']} bytes, {time}, {digest or time}"
    return stamps


@contextlib.contextmanager
def _store(address: object) -> Iterator[tuple[Any, str]]:
    """Yield the store of an address and the key there; raise OSError for whatever goes wrong."""
    import fsspec

    try:
        # Without a cache of listings, which would miss what other processes write.
        yield fsspec.core.url_to_fs(shown(address), use_listings_cache=False)
    except (OSError, MemoryError) as error:
        if isinstance(error, MemoryError | FileNotFoundError) or error.strerror or not error.args:
            raise
        raise OSError(None, _first_line(error)) from error
    except Exception as error:  # of botocore, aiohttp, google.auth, …
        raise OSError(None, _first_line(error)) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
