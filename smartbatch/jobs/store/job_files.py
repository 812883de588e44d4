"""Files that belong to a job: those that were given as bytes, and those that a provider returned.

Their content is in a folder next to the store, which contains their hashes. Files that users gave by path
are neither copied nor deleted.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from attrs import frozen

from smartbatch._files import own_folder, write_whole
from smartbatch.errors import StoreError
from smartbatch.jobs.records import DAY
from smartbatch.jobs.store.database import Database
from smartbatch.media import Media

STALE_SECONDS = DAY
"""The folder of an unknown job is deleted at this age. A newer one may belong to a job being stored."""
_PAGE = 500
_PART = ".part"  # end of the name of an incomplete file


@frozen
class JobFiles:
    """One private folder per job (mode 0700), with each content once, under its SHA-256.

    Args:
        root: contains the folders; created with the first file.
        shared: whether every process that uses the store can read them.
    """

    root: str
    shared: bool

    def folder(self, job_id: str) -> str:
        return os.path.join(self.root, job_id)

    def keep(self, job_ids: Iterable[str], media: Media) -> str | None:
        """Write a file that was given as bytes, or is in the folder of another job, to the folders of jobs.

        Returns:
            its name in the folders; ``None`` for any other file, whose path is enough.

        Raises:
            InvalidRequest: the other job was forgotten.
            StoreError: see :meth:`write`.
        """
        source = media.source
        ours = isinstance(source, str) and source.startswith(self.root + os.sep)
        if media.sha256 is None or not (ours or isinstance(source, bytes)):
            return None
        content = Media.content(media, "prompt")  # not scaled to max_pixels
        for job_id in job_ids:
            self.write(job_id, media.sha256, content)
        return media.sha256

    def write(self, job_id: str, sha256: str, content: bytes) -> None:
        """Write a file that the folder does not have yet, so that it survives a power failure.

        Raises:
            StoreError: the disk is full, or the folder is not writable or belongs to another user.
        """
        path = Path(self.folder(job_id), sha256)
        if path.exists():
            return
        try:
            own_folder(self.root)
            own_folder(str(path.parent))
            part = path.with_name(f"{sha256}.{os.getpid()}-{threading.get_ident()}{_PART}")
            write_whole(path, part, (content,))
        except OSError as error:
            raise StoreError(
                f"the folder {path.parent} cannot be written to ({error.strerror}); it contains files of a "
                "job: make its parent folder writable, or use another store"
            ) from None

    def count(self, job_id: str) -> int:
        """Return the number of a job's files, without those that a killed process left incomplete."""
        with contextlib.suppress(FileNotFoundError):
            return sum(not name.endswith(_PART) for name in os.listdir(self.folder(job_id)))
        return 0

    def delete(self, job_id: str) -> None:
        """Delete a job's folder; what cannot be deleted now is deleted by :meth:`stale` later."""
        shutil.rmtree(self.folder(job_id), ignore_errors=True)

    def stale(self, db: Database, *, at: float) -> Iterator[str]:
        """Yield the ids of jobs that the store does not have, but whose folders are older than a day.

        Such a folder remains if a process is killed while it stores or deletes a job.
        """
        try:
            old = [
                each.name
                for each in os.scandir(self.root)
                if each.is_dir(follow_symlinks=False) and each.stat().st_mtime < at - STALE_SECONDS
            ]
        except FileNotFoundError:
            return
        for start in range(0, len(old), _PAGE):
            page = old[start : start + _PAGE]
            known = {job_id for (job_id,) in db.rows("SELECT id FROM job WHERE id IN {texts}", page)}
            yield from sorted(set(page) - known)
