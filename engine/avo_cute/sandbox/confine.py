"""Inside the sandbox: limit this process, then become the command. Stdlib only, run by path.

`python -I -S -E confine.py FD SPEC COMMAND …`: FD is told when the command is about to start,
SPEC is JSON from the engine. With `supervise` a
supervisor stays outside the rules: it adopts whatever the command leaves behind (child subreaper)
and kills it, when the command ends, when it is asked to (SIGTERM) and when the engine dies.
`confine.py abi` prints the kernel's Landlock version.

Constants: linux/landlock.h, capability.h, seccomp.h, bpf_common.h and asm/unistd_64.h.
"""

import ctypes
import json
import os
import platform
import resource
import signal
import stat
import struct
import sys
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
PR_CAPBSET_DROP = 24
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER = 1, 38, 22, 36
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
START_FAILED = 125  # reported on stderr; a candidate has not run yet

ALL_RIGHTS = {1: 1 << 13, 2: 1 << 14, 3: 1 << 15, 4: 1 << 15, 5: 1 << 16}  # one past the last
READ_RIGHTS = 1 | 1 << 2 | 1 << 3  # execute, read file, read folder
FILE_RIGHTS = 1 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15  # those that make sense on a file
BIND_TCP, CONNECT_TCP = 1, 2
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1, 2


def main():
    if sys.argv[1] == "abi":
        sys.stdout.write(str(max(0, landlock_abi())))
        return
    ready, spec, command = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
    if spec["supervise"]:
        supervise(ready)
    become(spec, command, ready)


def become(spec, command, ready):
    """Give up everything the specification does not grant, then exec."""
    try:
        os.set_inheritable(ready, False)
        limit(*spec["limits"])
        drop_capabilities()
        check(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        if spec["landlock"]:
            landlock(spec["read"], spec["write"])
        if spec["seccomp"]:
            seccomp()
        os.write(ready, b"1")  # from here on whatever happens is the command's doing
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"sandbox: {error}\n")
        sys.stderr.flush()
        os._exit(START_FAILED)


def supervise(ready):
    """Fork; the child goes on as the command, the parent stays to clean up and never returns."""
    engine = os.getppid()
    check(LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    signal.signal(signal.SIGTERM, lambda *_: end(128 + signal.SIGTERM))
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()  # a signal to its own group must not reach the supervisor
        check(LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
        return
    check(LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0))
    if os.getppid() != engine:
        end(1)
    os.close(ready)
    os.close(1)
    os.close(2)  # the streams close when the last of the tree is gone
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            end(128 - code if code < 0 else code)


def end(code):
    """Kill every descendant, however often it forked or changed its session, then exit."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        for pid in descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            os._exit(code)


def descendants(root):
    """Every process below `root`, from one look at /proc."""
    children = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text(errors="replace")
            except OSError:
                continue
            parent = int(text.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def limit(memory, cpu, file_size):
    for what, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_FSIZE, file_size),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 4096),
    ):
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))


def drop_capabilities():
    """A root user's child is no root: with CAP_PERFMON it could read any process's environment."""
    for capability in range(64):
        LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails where there is none to drop
    header = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0), 8)  # version 3
    check(LIBC.capset(header, ctypes.create_string_buffer(24)))


def landlock_abi():
    return LIBC.syscall(CREATE_RULESET, None, 0, 1)


def landlock(read, write):
    """Grant reading and writing below the given paths, no TCP, no signals outwards."""
    abi = landlock_abi()
    everything = ALL_RIGHTS[min(abi, 5)] - 1
    network = BIND_TCP | CONNECT_TCP if abi >= 4 else 0
    scoped = SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS if abi >= 6 else 0
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    rules = ctypes.create_string_buffer(struct.pack("=QQQ", everything, network, scoped), 24)
    ruleset = check(LIBC.syscall(CREATE_RULESET, rules, size, 0))
    for paths, rights in (([*PROC, *read], READ_RIGHTS), (write, everything)):
        for path in paths:
            grant(ruleset, path, rights & everything)
    check(LIBC.syscall(RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def grant(ruleset, path, rights):
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(os.fstat(handle).st_mode):
        rights &= FILE_RIGHTS
    rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, handle), 12)
    check(LIBC.syscall(ADD_RULE, ruleset, 1, rule, 0))
    os.close(handle)


# Of /proc only what describes the machine, and the process that will be the command.
PROC = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys", "/proc/version")

# Numbers of the system calls refused: x86_64, aarch64.
REFUSED = {
    "ptrace": (101, 117),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "swapon": (167, 224),
    "reboot": (169, 142),
    "init_module": (175, 105),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "unshare": (272, 97),
    "perf_event_open": (298, 241),
    "open_by_handle_at": (304, 265),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "finit_module": (313, 273),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "pidfd_getfd": (438, 438),
}
SOCKET = (41, 198)
AF_UNIX, EPERM = 1, 1
ARCHES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
X32_BIT = 0x40000000
LOAD, JUMP_EQUAL, JUMP_GREATER_EQUAL, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | EPERM


def seccomp():
    """Refuse sockets other than unix ones and what reaches into other processes or mounts."""
    column, arch = ARCHES[platform.machine()]
    words = [(LOAD, 0, 0, 4), (JUMP_EQUAL, 1, 0, arch), (RETURN, 0, 0, KILL), (LOAD, 0, 0, 0)]
    words += [(JUMP_GREATER_EQUAL, 0, 1, X32_BIT), (RETURN, 0, 0, REFUSE)]
    for numbers in REFUSED.values():
        words += [(JUMP_EQUAL, 0, 1, numbers[column]), (RETURN, 0, 0, REFUSE)]
    words += [(JUMP_EQUAL, 0, 3, SOCKET[column]), (LOAD, 0, 0, 16)]  # socket: look at its family
    words += [(JUMP_EQUAL, 1, 0, AF_UNIX), (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)]
    code = b"".join(struct.pack("=HBBI", *word) for word in words)
    program = ctypes.create_string_buffer(code, len(code))
    filter_ = ctypes.create_string_buffer(
        struct.pack("@HP", len(words), ctypes.addressof(program)), 16
    )
    check(LIBC.prctl(PR_SET_SECCOMP, 2, filter_, 0, 0))


def check(result):
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


if __name__ == "__main__":
    main()
