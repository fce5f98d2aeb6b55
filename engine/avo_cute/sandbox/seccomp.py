"""The system calls a confined process is refused, as a seccomp program (classic BPF).

Landlock rules paths and TCP only. What it leaves open is closed here for the layer of that name:
unix sockets bound outside the sandbox, the mode, owner and times of files, System V memory and
message queues that outlive a run, limits and priorities of other processes.

Numbers and values: linux/seccomp.h, linux/bpf_common.h, asm/unistd_64.h, asm-generic/unistd.h.
"""

from __future__ import annotations

import platform
import struct
from dataclasses import dataclass

_Word = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class _Only:
    """Allow a call only where `argument & mask` is one of `values` (or, `not_in`, none of them)."""

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF
    not_in: bool = False


_Rule = tuple[str, int, tuple[_Only, ...]]  # of one system call: what is done unless it is `Only`


def supported() -> bool:
    """Whether the numbers of this machine's system calls are known here."""
    return platform.machine() in _ARCHES


def program(layer: str, landlock_abi: int, gpu: bool = False) -> bytes:
    """The filter of a layer, as an array of `struct sock_filter`.

    Below Landlock 6 signals are not kept inside, so there the filter refuses them instead. `gpu`
    lets pass what CUDA needs in addition: a connection-oriented unix socket of its own to bind and
    listen on, without which it does not start, and a look at where its own pages lie.
    """
    column, arch = _ARCHES[platform.machine()]
    words: list[_Word] = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL)]
    words += [(_LOAD, 0, 0, 0), (_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _REFUSE)]
    for name, action, checks in _rules(layer, landlock_abi, gpu):
        number = _NUMBERS[name][column]
        if number is not None:
            body = [word for check in checks for word in _check(check, action)]
            body.append((_RETURN, 0, 0, _ALLOW if checks else action))
            words += [(_EQUAL, 0, len(body), number), *body]
    words.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *word) for word in words)


def _rules(layer: str, landlock_abi: int, gpu: bool) -> list[_Rule]:
    # the first rule of a name decides
    rules: list[_Rule] = [("move_pages", _REFUSE, (_Only(0, (0,)),))] if gpu else []
    rules += [(n, _REFUSE, ()) for n in _NEVER]
    rules.append(("clone3", _UNKNOWN, ()))  # its flags are out of reach; libc falls back to clone
    rules.append(("clone", _REFUSE, (_Only(0, (0,), _NEW_NAMESPACES),)))
    rules.append(("ioctl", _REFUSE, (_Only(1, _TERMINAL_INPUT, not_in=True),)))
    if layer != "landlock":
        return [*rules, *((n, _REFUSE, (_Only(0, (_AF_UNIX,)),)) for n in ("socket", "socketpair"))]
    # a datagram socket can be sent to any address, even one of a pair
    pair = (_Only(0, (_AF_UNIX,)), _Only(1, (_STREAM, _SEQPACKET), 0xF))
    rules.append(("socket", _REFUSE, pair if gpu else ()))
    rules += [(n, _REFUSE, ()) for n in ("connect", *_SHARED_MEMORY)]
    rules.append(("socketpair", _REFUSE, pair))
    rules += [(n, _PRETEND, ()) for n in _METADATA]
    rules += [(n, _REFUSE, (_Only(0, (0,)),)) for n in _OF_ANOTHER]
    # of a group or a user, number 0 means the caller's own: every process of that user
    rules.append(("setpriority", _REFUSE, (_Only(0, (0,)), _Only(1, (0,)))))
    rules.append(("ioprio_set", _REFUSE, (_Only(0, (1,)), _Only(1, (0,)))))
    if landlock_abi < 6:
        rules += [(n, _REFUSE, ()) for n in ("tkill", "tgkill", "pidfd_send_signal")]
        rules.append(("kill", _REFUSE, (_Only(0, (0,)),)))  # 0: its own group
        rules.append(("fcntl", _REFUSE, (_Only(1, _SET_OWNER, not_in=True),)))
    return rules


def _check(check: _Only, action: int) -> list[_Word]:
    """Go on behind these words where the check holds, otherwise return `action`."""
    words: list[_Word] = [(_LOAD, 0, 0, 16 + 8 * check.argument), (_AND, 0, 0, check.mask)]
    last = len(check.values) - 1
    for n, value in enumerate(check.values):
        if check.not_in:  # any match jumps to the return
            words.append((_EQUAL, last - n, 1 if n == last else 0, value))
        else:  # any match jumps over it
            words.append((_EQUAL, last - n + 1, 0, value))
    return [*words, (_RETURN, 0, 0, action)]


_ARCHES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32_BIT = 0x40000000
_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ERRNO, _ALLOW, _KILL = 0x00050000, 0x7FFF0000, 0x80000000
_REFUSE, _UNKNOWN = _ERRNO | 1, _ERRNO | 38  # EPERM, ENOSYS
_PRETEND = _ERRNO | 0  # nothing happens and the caller sees success: copying a file must not fail
_AF_UNIX, _STREAM, _SEQPACKET = 1, 1, 5
_NEW_NAMESPACES = 0x7E020080  # CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET, TIME
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_SET_OWNER = (8, 15)  # F_SETOWN, F_SETOWN_EX: signals sent by way of SIGIO

_NEVER = (
    "ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_getfd "
    "mount umount2 pivot_root chroot open_tree move_mount fsopen fsconfig fsmount fspick "
    "mount_setattr unshare setns swapon swapoff reboot acct quotactl init_module finit_module "
    "delete_module kexec_load add_key request_key keyctl bpf perf_event_open userfaultfd "
    "io_uring_setup io_uring_enter io_uring_register open_by_handle_at fanotify_init "
    "move_pages migrate_pages settimeofday clock_settime adjtimex clock_adjtime"
).split()
_SHARED_MEMORY = "shmget shmat semget msgget mq_open mq_unlink".split()
_METADATA = (
    "chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat "
    "utimensat setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr"
).split()
_OF_ANOTHER = "prlimit64 sched_setscheduler sched_setparam sched_setattr sched_setaffinity".split()

# x86_64, aarch64
_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "ioctl": (16, 29),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "socket": (41, 198),
    "connect": (42, 203),
    "socketpair": (53, 199),
    "clone": (56, 220),
    "kill": (62, 129),
    "semget": (64, 190),
    "msgget": (68, 186),
    "fcntl": (72, 25),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "ptrace": (101, 117),
    "utime": (132, None),
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "pivot_root": (155, 41),
    "adjtimex": (159, 171),
    "chroot": (161, 51),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "mount": (165, 40),
    "umount2": (166, 39),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "quotactl": (179, 60),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "tkill": (200, 130),
    "sched_setaffinity": (203, 122),
    "clock_settime": (227, 112),
    "tgkill": (234, 131),
    "utimes": (235, None),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "fchownat": (260, 54),
    "futimesat": (261, None),
    "fchmodat": (268, 53),
    "unshare": (272, 97),
    "move_pages": (279, 239),
    "utimensat": (280, 88),
    "perf_event_open": (298, 241),
    "fanotify_init": (300, 262),
    "prlimit64": (302, 261),
    "open_by_handle_at": (304, 265),
    "clock_adjtime": (305, 266),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "finit_module": (313, 273),
    "sched_setattr": (314, 274),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "pidfd_send_signal": (424, 424),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "clone3": (435, 435),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "mount_setattr": (442, 442),
    "process_mrelease": (448, 448),
    "fchmodat2": (452, 452),
}
