"""Which system calls the jail refuses, as a seccomp filter.

A deny list: it closes doors that namespaces and lost capabilities leave open (sockets, and the
parts of the kernel that most faults are found in), and is not the jail's only wall.
"""

import errno
import platform
import struct

from paced_jax.verifiers.jail.kernel import NAMESPACE_FLAGS

# name: (x86_64, aarch64)
_REFUSED = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_by_handle_at": (304, 265),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "mount_setattr": (442, 442),
    "pidfd_getfd": (438, 438),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "syslog": (103, 116),
    "shmget": (29, 194),
    "msgget": (68, 186),
}
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_ARCHITECTURE = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_LOAD, _JUMP_EQ, _JUMP_GE, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000


def known_architecture() -> bool:
    """Whether the numbers above hold for this machine."""
    return platform.machine() in _ARCHITECTURE


def program() -> bytes:
    """Returns the filter: a refused call fails with EPERM, everything else goes on."""
    column, architecture = _ARCHITECTURE[platform.machine()]

    def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("=HBBI", code, yes, no, value)

    def refuse_if_equal(number: int, error: int) -> list[bytes]:
        return [step(_JUMP_EQ, number, 0, 1), step(_RETURN, _ERROR | error)]

    steps = [
        step(_LOAD, 4),  # the architecture: another one has other numbers
        step(_JUMP_EQ, architecture, 1, 0),
        step(_RETURN, _KILL),
        step(_LOAD, 0),  # the call's number
        step(_JUMP_GE, 0x40000000, 0, 1),  # x32, the same kernel calls by other numbers
        step(_RETURN, _KILL),
    ]
    for numbers in _REFUSED.values():
        steps += refuse_if_equal(numbers[column], errno.EPERM)
    # clone3 keeps its flags in memory, out of a filter's sight; libc falls back to clone.
    steps += refuse_if_equal(_CLONE3[column], errno.ENOSYS)
    steps += [
        step(_JUMP_EQ, _CLONE[column], 0, 3),
        step(_LOAD, 16),  # the low half of its first argument
        step(_JUMP_SET, NAMESPACE_FLAGS, 0, 1),
        step(_RETURN, _ERROR | errno.EPERM),
        step(_RETURN, _ALLOW),
    ]
    return b"".join(steps)
