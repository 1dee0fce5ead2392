"""The kernel calls of the jail, through ctypes; each failure is an OSError.

`os.unshare` comes with Python 3.12 only, the others not at all.
"""

import ctypes
import os
import platform

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x00020000, 0x02000000, 0x04000000
"""`unshare`: mounts, control groups, host names."""
CLONE_NEWIPC, CLONE_NEWUSER = 0x08000000, 0x10000000
"""`unshare`: message queues, users."""
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
"""`unshare`: processes, networks."""
NAMESPACE_FLAGS = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID
    | CLONE_NEWNET
)  # fmt: skip
"""All namespaces a jail has of its own."""

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
"""`mount`: read only, no set-user-id, no devices, no programs."""
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
"""`mount`: change, bind, with all below, without telling other namespaces."""
MNT_DETACH = 2
"""`umount2`: let go at once."""

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP = 1, 4, 22
"""`prctl`: die with the parent, hide from debuggers, filter system calls."""
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
"""`prctl`: give up capabilities, never gain any."""

_libc = ctypes.CDLL(None, use_errno=True)
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91}


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def unshare(flags: int) -> None:
    """Moves this process (for CLONE_NEWPID: its children) into new namespaces."""
    _check(_libc.unshare(ctypes.c_int(flags)))


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Mounts; `kind` is the file system, None for a bind or a change of flags."""
    _check(
        _libc.mount(
            source.encode(),
            target.encode(),
            kind.encode() if kind else None,
            ctypes.c_ulong(flags),
            options.encode() or None,
        )
    )


def pivot_root(new_root: str) -> None:
    """Makes a mount point the root directory and drops the old root altogether."""
    os.chdir(new_root)
    number = _PIVOT_ROOT[platform.machine()]
    _check(_libc.syscall(ctypes.c_long(number), b".", b"."))
    _check(_libc.umount2(b".", MNT_DETACH))
    os.chdir("/")


def prctl(option: int, *values: int) -> None:
    """Sets a property of this process."""
    padded = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    _check(_libc.prctl(ctypes.c_int(option), *padded))


def drop_bounding_set() -> None:
    """Makes sure that no later exec gains a capability."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            if capability < 38:  # every supported kernel knows these
                raise
            break


def drop_capabilities() -> None:
    """Gives up all capabilities of this process."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
    nothing = (ctypes.c_uint32 * 6)()
    _check(_libc.syscall(ctypes.c_long(_CAPSET[platform.machine()]), header, nothing))


def install_filter(program: bytes) -> None:
    """Installs a seccomp filter of 8-byte instructions for good."""

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))

    argument = Program(len(program) // 8, program)
    pointer = ctypes.cast(ctypes.pointer(argument), ctypes.c_void_p).value or 0
    prctl(PR_SET_SECCOMP, 2, pointer)
