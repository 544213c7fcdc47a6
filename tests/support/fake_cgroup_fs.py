"""A control-group file system in a folder, with the kernel's rules that matter here."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from hybridgen.launch.cgroup_fs import CgroupFs

_PLAIN = ("cgroup.procs", "cgroup.controllers", "cgroup.subtree_control", "cgroup.kill")
_BY_CONTROLLER = {
    "cpuset": ("cpuset.cpus",),
    "cpu": ("cpu.weight",),
    "memory": ("memory.max",),
}


class FakeCgroupFs(CgroupFs):
    """Groups below ``root``, which has ``controllers`` and is not the hierarchy's very root."""

    def __init__(self, root: Path, controllers: str = "cpuset cpu memory pids") -> None:
        root.mkdir(exist_ok=True)
        for file in _PLAIN:
            (root / file).touch()
        (root / "cgroup.type").write_text("domain\n")
        (root / "cgroup.controllers").write_text(f"{controllers}\n")

    def make(self, folder: Path) -> None:
        if folder.exists():
            return
        folder.mkdir()
        for file in _PLAIN:
            (folder / file).touch()
        self._share_out(folder.parent, folder)

    def remove(self, folder: Path) -> None:
        if self.words(folder, "cgroup.procs") or any(map(Path.is_dir, folder.iterdir())):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        shutil.rmtree(folder)

    def write(self, folder: Path, file: str, text: str) -> None:
        if not (folder / file).exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if file == "cgroup.procs":
            self._move(folder, text)
        elif file == "cgroup.subtree_control":
            self._control(folder, text)
        elif file == "cgroup.kill":
            (folder / "cgroup.procs").write_text("")
        else:
            (folder / file).write_text(text)

    def _move(self, folder: Path, pid: str) -> None:
        if self.words(folder, "cgroup.subtree_control"):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        for other in (folder, *folder.parents, *folder.rglob("*"), *folder.parent.rglob("*")):
            procs = other / "cgroup.procs"
            if procs.exists():
                procs.write_text("\n".join(p for p in procs.read_text().split() if p != pid))
        with (folder / "cgroup.procs").open("a") as procs_file:
            procs_file.write(f"\n{pid}")

    def _control(self, folder: Path, change: str) -> None:
        have = self.words(folder, "cgroup.subtree_control")
        name = change[1:]
        children = [child for child in folder.iterdir() if child.is_dir()]
        in_use = any(name in self.words(child, "cgroup.subtree_control") for child in children)
        is_busy = bool(self.words(folder, "cgroup.procs")) if change[0] == "+" else in_use
        if is_busy:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        have = [*have, name] if change[0] == "+" else [word for word in have if word != name]
        (folder / "cgroup.subtree_control").write_text(" ".join(have))
        for child in children:
            self._share_out(folder, child)

    def _share_out(self, folder: Path, child: Path) -> None:
        names = self.words(folder, "cgroup.subtree_control")
        (child / "cgroup.controllers").write_text(" ".join(names))
        for controller, files in _BY_CONTROLLER.items():
            for file in files:
                if controller in names:
                    (child / file).touch()
                else:
                    (child / file).unlink(missing_ok=True)
