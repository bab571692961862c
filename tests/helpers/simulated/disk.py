"""Simulate the disk of a machine: slow, full, and without unsynced data after a loss of power.

What a process has written is held by the system, and outlives the process. A loss of power leaves
what was synced, and an arbitrary beginning of all later writes and changes of names.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib


class _Inode:
    __slots__ = ("data", "modified", "owner", "synced")

    def __init__(self):
        self.data, self.synced, self.owner, self.modified = bytearray(), b"", None, 0.0


class File:
    """An open file."""

    def __init__(self, disk, process, inode, mode):
        self._disk, self._process, self.inode = disk, process, inode
        self._text, self._append, self.closed = "b" not in mode, "a" in mode, False
        self._position = len(inode.data) if self._append else 0
        process.files.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __iter__(self):
        return iter(bytes(self.inode.data[self._position:]).splitlines(keepends=True))

    def tell(self):
        return self._position

    def seek(self, offset, whence=os.SEEK_SET):
        self._position = offset + (len(self.inode.data) if whence == os.SEEK_END else 0)
        return self._position

    def read(self, size=-1):
        end = None if size < 0 else self._position + size
        data = bytes(self.inode.data[self._position:end])
        self._position += len(data)
        return data.decode() if self._text else data

    def readinto(self, buffer):
        data, view = self.read(memoryview(buffer).nbytes), memoryview(buffer).cast("B")
        view[:len(data)] = data
        return len(data)

    def write(self, data):
        self._disk.step()
        self._disk.check_room()
        data = data.encode() if self._text else bytes(memoryview(data).cast("B"))
        if self._append:
            self._position = len(self.inode.data)
        self.inode.data[self._position:self._position + len(data)] = data
        self._position += len(data)
        self.inode.modified = self._process.world.now
        return len(data)

    def truncate(self, size=None):
        size = self._position if size is None else size
        del self.inode.data[size:]
        return size

    def flush(self):
        pass

    def close(self):
        if not self.closed:
            self.closed = True
            if self.inode.owner is self:
                self.inode.owner = None
            with contextlib.suppress(ValueError):
                self._process.files.remove(self)

    die = close


class Machine:
    """What outlives the processes of one machine: its disk.

    Attributes:
        slow: mean seconds of a sync.
        full: chance that a write fails.
    """

    def __init__(self, world, slow=0.002, full=0.0):
        self._world, self.slow, self.full = world, slow, full
        self.names, self._kept_names = {}, {}  # path -> inode, now and for certain
        self._changes = []  # of names, since the last sync
        self.folders = set()
        self.begun = False  # it holds a run.json: without one, no command begins on a full disk
        self.on_change = lambda path, data: None  # is called for each file that takes its name

    def change(self, change):
        """Change names: path -> inode or None."""
        self._apply(self.names, change)
        self._changes.append(change)

    def sync(self, inode):
        """Sync as a journal does: all earlier changes of names go with a file's data."""
        inode.synced = bytes(inode.data)
        for change in self._changes:
            self._apply(self._kept_names, change)
        self._changes.clear()

    def lose_power(self):
        """Keep the synced data only, and an arbitrary beginning of the rest."""
        kept = self._world.rng.randint(0, len(self._changes))
        for change in self._changes[:kept]:
            self._apply(self._kept_names, change)
        self._changes.clear()
        self.names = dict(self._kept_names)
        for inode in dict.fromkeys(self.names.values()):
            data, synced = bytes(inode.data), inode.synced
            if data[:len(synced)] == synced:
                data = data[:self._world.rng.randint(len(synced), len(data))]
            else:
                data = synced
            inode.data[:], inode.synced = data, data

    @staticmethod
    def _apply(names, change):
        for path, inode in change.items():
            if inode is None:
                names.pop(path, None)
            else:
                names[path] = inode


class Disk:
    """A machine's disk, as one process uses it: see `wbsp.process.disk.Disk`."""

    def __init__(self, process, machine, scratch):
        self._process, self.machine, self._scratch = process, machine, scratch
        # a path knows its disk; what pathlib makes of one is of its class
        self._path = type("SimulatedPath", (SimulatedPath,), {"disk": self})

    def path(self, text):
        return text if isinstance(text, SimulatedPath) else self._path(text)

    def regular(self, path):
        return self.open(path, "rb")

    def sync(self, file):
        machine, world = self.machine, self._process.world
        self.step()
        if machine.slow:
            self._process.sleep(machine.slow * world.rng.expovariate(1))
        self.check_room()
        machine.sync(file.inode)

    def sync_names(self, folder):
        machine, world = self.machine, self._process.world
        self.step()
        if machine.slow:
            self._process.sleep(machine.slow * world.rng.expovariate(1))
        machine.sync(_Inode())

    def remove(self, folder):
        self.step()
        machine = self.machine
        machine.folders.discard(str(folder))
        machine.change({name: None for name in machine.names if name.startswith(f"{folder}/")})

    def lock(self, file, shared=False):
        inode = file.inode
        if inode.owner not in (None, file) and not inode.owner.closed:
            raise BlockingIOError
        if not shared:
            inode.owner = file

    def step(self):
        """Something is about to change."""
        world = self._process.world
        world.on_disk(self._process)
        if world.doomed:
            world.step(self._process)

    def check_room(self):
        full = self.machine.full if self.machine.begun else 0.0
        if full and self._process.world.rng.random() < full:
            raise OSError(errno.ENOSPC, "No space left on device")

    def open(self, path, mode):
        names, text = self.machine.names, str(path)
        inode = names.get(text)
        if inode is None or "x" in mode:
            if "r" in mode:
                raise FileNotFoundError(errno.ENOENT, "No such file", text)
            if inode is not None:
                raise FileExistsError(errno.EEXIST, "File exists", text)
            self.step()
            inode = _Inode()
            self.machine.change({text: inode})
        elif "w" in mode:
            inode.data = bytearray()
        return File(self, self._process, inode, mode)

    def real(self, path):
        """Return a file of the system with the same bytes, for code that reads only such files."""
        inode = self.machine.names.get(str(path))
        if inode is None:
            return str(path)
        self._scratch.unlink(missing_ok=True)
        self._scratch.write_bytes(inode.data)
        return str(self._scratch)


class SimulatedPath(pathlib.PurePosixPath):
    """A path on a simulated disk."""

    disk: Disk

    def __fspath__(self):
        return self.disk.real(self)

    def open(self, mode="r", buffering=-1):
        return self.disk.open(self, mode)

    def read_bytes(self):
        with self.open("rb") as file:
            return file.read()

    def read_text(self):
        return self.read_bytes().decode()

    def exists(self):
        machine = self.disk.machine
        return str(self) in machine.names or str(self) in machine.folders

    is_file = exists

    def is_dir(self):
        return str(self) in self.disk.machine.folders

    def mkdir(self, parents=False, exist_ok=False):
        self.disk.step()
        folders = self.disk.machine.folders
        if str(self) in folders and not exist_ok:
            raise FileExistsError(errno.EEXIST, "File exists", str(self))
        folders |= {str(self), *map(str, self.parents)}

    def glob(self, pattern):
        machine = self.disk.machine
        names = {name for name in [*machine.names, *machine.folders]
                 if pathlib.PurePosixPath(name).parent == pathlib.PurePosixPath(self)}
        return [path for path in map(type(self), sorted(names)) if path.match(pattern)]

    def iterdir(self):
        return iter(self.glob("*"))

    def touch(self, mode=0o666, exist_ok=True):
        if not self.exists():
            self.open("xb").close()

    def chmod(self, mode):
        pass

    def hardlink_to(self, target):
        self.disk.step()
        inode = self.disk.machine.names.get(str(target))
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(target))
        if self.exists():
            raise FileExistsError(errno.EEXIST, "File exists", str(self))
        self.disk.machine.change({str(self): inode})

    def unlink(self, missing_ok=False):
        if str(self) in self.disk.machine.names:
            self.disk.step()
            self.disk.machine.change({str(self): None})
        elif not missing_ok:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(self))

    def replace(self, target):
        self.disk.step()
        machine = self.disk.machine
        if str(self) in machine.folders:
            machine.folders = (machine.folders - {str(self)}) | {str(target)}
            inside = [name for name in machine.names if name.startswith(f"{self}/")]
            machine.change(dict.fromkeys(inside) | {
                str(target) + name.removeprefix(str(self)): machine.names[name] for name in inside})
            return target
        inode = machine.names[str(self)]
        machine.change({str(self): None, str(target): inode})
        machine.on_change(target, bytes(inode.data))
        return target

    def stat(self):
        inode = self.disk.machine.names.get(str(self))
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(self))
        return os.stat_result((0o644, 0, 0, 1, 0, 0, len(inode.data), 0, inode.modified, 0))

    def absolute(self):
        return self
