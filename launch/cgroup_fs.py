"""The control-group file system (cgroup v2): folders with files that are commands."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


class CgroupFs:
    """What is done to it. Every call raises OSError with the kernel's own reason."""

    def make(self, folder: Path) -> None:
        """Make a group, or take the one that is there."""
        folder.mkdir(exist_ok=True)

    def remove(self, folder: Path) -> None:
        """Remove a group without processes and children."""
        folder.rmdir()

    def words(self, folder: Path, file: str) -> list[str]:
        """What a file of a group lists."""
        return (folder / file).read_text(encoding="ascii").split()

    def write(self, folder: Path, file: str, text: str) -> None:
        """Give a group a command. The file is there already, or the kernel does not know it."""
        fd = os.open(folder / file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def own_group() -> Path | None:
    """The folder of this process's group; None where no v2 hierarchy is mounted."""
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    return find_group(mounts, Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines())


def find_group(mounts: Iterable[str], membership: Iterable[str]) -> Path | None:
    """The folder of the v2 group that ``membership`` names.

    Args:
        mounts: lines of /proc/self/mountinfo.
        membership: lines of /proc/self/cgroup.
    """
    path = next((line[3:] for line in membership if line.startswith("0::")), None)
    if path is None:
        return None
    for line in mounts:
        # "41 31 0:38 <root> <mount point> <options> … - cgroup2 cgroup2 rw"
        fields, _, kind = line.partition(" - ")
        if not kind.startswith("cgroup2 "):
            continue
        root, mount_point = fields.split()[3:5]
        if Path(path).is_relative_to(root):
            return Path(mount_point) / Path(path).relative_to(root)
    return None
