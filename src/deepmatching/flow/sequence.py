"""A folder of flow files, one for each pair of frames, that a run which stopped can go on with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from deepmatching.errors import DeepMatchingError
from deepmatching.io.files import atomic_write, check_writable, make_folder
from deepmatching.io.flow import write_flow

RECORD = "flow.json"


class FlowFolder:
    """Flow files of one source, all made with the same settings, which ``flow.json`` keeps beside them.

    A flow counts as finished once its file is complete and its name is in the record, in this order, so a run may be
    ended at any moment; and as long as what it was made from has not changed.

    Args:
        path: the folder; made if it is missing.
        suffix: of the flow files, such as ``".flo"``.
        settings: what the flows depend on, as JSON can hold it.
        origins: the names of the flows that are to come, and what tells whether the frames of each are the same as
            before. Files of these names that no earlier run has made are not replaced.
        restart: forget what an earlier run has finished.
    """

    def __init__(
        self, path: Path, suffix: str, settings: dict[str, Any], origins: Mapping[str, list[str]], restart: bool = False
    ) -> None:
        make_folder(path)
        self.path, self.suffix = path, suffix
        self.settings = {"suffix": suffix, **settings}
        self.origins = dict(origins)
        self.finished: dict[str, list[str]] = {}  # names in order, and what each flow was made from
        record = path / RECORD
        check_writable(record)
        if record.is_file() and not restart:
            self.finished = self._continued(record)
        if not record.is_file() and (foreign := [name for name in origins if self.file(name).exists()]):
            raise DeepMatchingError(
                f"The folder '{path}' holds a file of another origin, '{self.file(foreign[0]).name}', that would be "
                "replaced: give another folder."
            )
        self.save()

    def __contains__(self, name: str) -> bool:
        return self._is_there(name) and self.finished[name] == self.origins.get(name)

    @property
    def outdated(self) -> list[str]:
        """Finished flows of other frames than now."""
        return [name for name in self.finished if self._is_there(name) and name not in self]

    def _is_there(self, name: str) -> bool:
        return name in self.finished and self.file(name).is_file()

    def file(self, name: str) -> Path:
        """Where the flow that starts at the frame of this name is."""
        return self.path / f"{name}{self.suffix}"

    def add(self, name: str, flow: np.ndarray) -> None:
        """Write a flow (H, W, 2) and then that it is finished."""
        write_flow(self.file(name), flow)
        self.finished[name] = self.origins[name]
        self.save()

    def save(self) -> None:
        """Write the record."""
        content = {"settings": self.settings, "finished": self.finished}
        with atomic_write(self.path / RECORD) as temporary:
            temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")

    def _continued(self, record: Path) -> dict[str, list[str]]:
        """The flows that the record of an earlier run has, if that had the same settings."""
        try:
            content = json.loads(record.read_text(encoding="utf-8"))
            before = dict(content["settings"])
            finished = {str(name): list(origin) for name, origin in dict(content["finished"]).items()}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DeepMatchingError(
                f"'{record}' is no record of an earlier run: use another folder, or start again with --restart."
            ) from error
        for name in {**self.settings, **before}:
            if before.get(name) != self.settings.get(name):
                raise DeepMatchingError(
                    f"The flows in '{self.path}' were made with {name} {before.get(name)!r}, and now it is "
                    f"{self.settings.get(name)!r}: use the same settings, another folder, or --restart."
                )
        return finished
