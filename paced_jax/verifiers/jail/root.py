"""The jail's file tree: the interpreter, read-only, and a scratch directory; nothing else.

Built in a private mount namespace, so nothing outside changes.
"""

import os
from typing import Any

from paced_jax.verifiers.jail import kernel
from paced_jax.verifiers.jail.kernel import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
)

SCRATCH, PROGRAM = "/scratch", "/program.py"
"""What a jailed program may write to, and where it lies itself."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


def build(base: str, setup: dict[str, Any], program: str, uid: int, gid: int) -> None:
    """Mounts the tree on the folder `base`.

    Args:
        base: an existing folder; what it holds is hidden from now on.
        setup: `interpreter` (folders, masked, files), `scratch_bytes` and `files`.
        program: text of the program.
        uid: who owns the scratch directory.
        gid: its group.
    """
    room = 2**22 + 4 * len(program)  # for the program and a few hundred mount points
    kernel.mount("tmpfs", base, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=0755,size={room}")
    interpreter = setup["interpreter"]
    for folder in interpreter["folders"]:
        os.makedirs(base + folder, exist_ok=True)
        _bind(folder, base + folder, MS_NODEV)
    for masked in interpreter["masked"]:
        kernel.mount("tmpfs", base + masked, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k")
    for file in interpreter["files"]:
        _bind_file(file, base + file, MS_NODEV)
    for device in _DEVICES:
        _bind_file(device, base + device, 0)
    os.mkdir(base + SCRATCH)
    options = f"mode=0700,size={setup['scratch_bytes']},nr_inodes={setup['files']}"
    kernel.mount(
        "tmpfs",
        base + SCRATCH,
        "tmpfs",
        MS_NOSUID | MS_NODEV | MS_NOEXEC,
        f"{options},uid={uid},gid={gid}",
    )
    with open(base + PROGRAM, "w", encoding="utf-8", errors="surrogatepass") as out:
        out.write(program)
    os.chmod(base + PROGRAM, 0o444)
    kernel.mount("", base, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _bind_file(source: str, target: str, flags: int) -> None:
    if os.path.exists(target):
        return  # inside a folder that is bound already
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "x"):
        pass
    _bind(source, target, flags)


def _bind(source: str, target: str, flags: int) -> None:
    kernel.mount(source, target, None, MS_BIND | MS_REC)
    # In a user namespace the flags of the source are locked and must be named again.
    flags |= os.statvfs(target).f_flag & MS_NOEXEC
    kernel.mount("", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | flags)
