"""Folders of results that a later run completes.

A run may be killed at any moment. Each result is written under a temporary name and renamed (``io.files``), so a result
that exists is complete. A manifest beside the results holds the settings that all of them were made with, and a lock
keeps other processes out.
"""

import contextlib
import errno
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from filelock import FileLock, Timeout

from deepmatching.errors import DeepMatchingError
from deepmatching.io.addresses import scheme_of, shown
from deepmatching.io.files import check_writable, is_file, new_folders, remove_file, remove_temporaries, write_file
from deepmatching.io.structured import read_json


class Manifest(Protocol):
    """The content of a manifest; the settings are all that the results depend on, JSON-serializable."""

    @property
    def settings(self) -> dict[str, Any]: ...


T = TypeVar("T")
M = TypeVar("M", bound=Manifest)
Settings = Mapping[str, Any]
#: What file systems without locks answer. A run there goes on unprotected.
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@dataclass(frozen=True)
class Store:
    """A folder of results that were all made with the same settings."""

    path: Path  #: the folder
    manifest_name: str  #: the file in it that holds the settings
    results: str  #: what messages call the results, such as ``"flows"``
    subfolders: tuple[str, ...] = ()  #: where in the folder the results are, if not beside the manifest
    option: str = "--out"  #: how the user names another folder
    #: What the user can do about other settings.
    advice: str = "use the same settings, another folder, or --restart"

    @property
    def manifest(self) -> Path:
        """The file that holds the settings."""
        return self.path / self.manifest_name

    @property
    def exists(self) -> bool:
        """Whether a run has been started in the folder."""
        return is_file(self.manifest)

    @contextlib.contextmanager
    def reserve(self) -> Iterator[None]:
        """Create the folder, keep other processes out of it, and remove what killed ones left half written.

        An object store has nothing half written, and no locks: two processes would write the same results.
        """
        if scheme_of(self.path):
            probe = self.path / ".deepmatching"
            write_file(probe, b"This store can be written.")
            remove_file(probe)
            yield
            return
        with new_folders(self.path, *(self.path / name for name in self.subfolders)):
            check_writable(self.manifest)
            with lock_folder(self.path, self.option):
                for name in self.subfolders:
                    remove_temporaries(self.path / name, is_locked=True)
                yield

    def read(self, kind: type[T]) -> T:
        """Return the manifest as a dataclass, or as another type that pydantic can check."""
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(kind).validate_python(read_json(self.manifest, "manifest"))
        except ValidationError as error:
            first = error.errors()[0]
            reason = ": ".join([*map(str, first["loc"][:1]), first["msg"]])
        except DeepMatchingError as error:
            reason = str(error.__cause__ or error).rstrip(".")
        raise DeepMatchingError(
            f"'{shown(self.manifest)}' is not the manifest of a run ({reason}): use another folder."
        )

    def resume(self, new: M) -> M:
        """Return the manifest in the folder, whose settings must be those of ``new``; ``new`` if there is none."""
        if not self.exists:
            return new
        before = self.read(type(new))
        self.check_settings(before.settings, new.settings)
        return before

    def write(self, content: Mapping[str, Any], indent: int | None = 1) -> None:
        """Replace the manifest."""
        write_file(self.manifest, json.dumps(content, indent=indent))

    def check_settings(self, before: Settings, now: Settings, changeable: Collection[str] = ()) -> None:
        """Raise if a run with settings ``before`` would be continued with others."""
        check_same_settings(f"The {self.results} in '{shown(self.path)}'", before, now, self.advice, changeable)


def check_same_settings(what: str, before: Settings, now: Settings, advice: str, exempt: Collection[str] = ()) -> None:
    """Raise if settings differ: ``what`` were made with those ``before``, and ``advice`` ends the message.

    Settings may be nested; one that is missing is None. Those that ``exempt`` names, such as ``device`` or the
    table ``data``, may differ.
    """
    for name, old, new in _differences(before, now):
        if not any(f"{name}.".startswith(f"{free}.") for free in exempt):
            was, is_ = ("not set" if v is None else json.dumps(v, ensure_ascii=False, default=repr) for v in (old, new))
            made = f"without {name}" if old is None else f"with {name} {was}"
            raise DeepMatchingError(f"{what} were made {made}, and now it is {is_}: {advice}.")


def _differences(before: Settings, now: Settings, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted name, the old and the new value of each setting that differs."""
    for name in {**now, **before}:
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{prefix}{name}.")
        elif old != new:
            yield prefix + name, old, new


@contextlib.contextmanager
def lock_folder(folder: Path, option: str = "--out") -> Iterator[None]:
    """Keep other processes out of a writable folder while the block lasts; remove what killed ones left half written.

    The operating system holds the lock on the file ``.lock`` and releases it however the process ends. A file that a
    killed process leaves behind locks nobody out. ``option`` is how the user names another folder.
    """
    path = folder / ".lock"
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        advice = f"wait for it, stop it, or use another {option}"
        raise DeepMatchingError(f"Another process is at work in '{folder}': {advice}.") from None
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise DeepMatchingError(f"'{path}' cannot be locked ({error.strerror}): remove it.") from error
    try:
        remove_temporaries(folder, is_locked=True)
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows does not remove open files
            path.unlink()  # before the release: afterwards it could be another run's
        lock.release()
