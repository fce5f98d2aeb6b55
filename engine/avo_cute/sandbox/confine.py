"""Inside the sandbox: limit this process, then become the command. Stdlib only, run by path.

`python -I -S -E confine.py SPEC COMMAND …`, SPEC being JSON from the engine. With `supervise` a
supervisor stays outside the rules: it adopts whatever the command leaves behind (child subreaper)
and kills it, when the command ends, when it is asked to (SIGTERM) and when the engine dies.
`confine.py abi` prints the kernel's Landlock version.

Constants: linux/landlock.h, capability.h, prctl.h and asm-generic/unistd.h.
"""

import ctypes
import json
import os
import resource
import signal
import stat
import struct
import sys
import time

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
START_FAILED = 125
MAX_DESCRIPTORS = 4096

ALL_RIGHTS = {3: 1 << 15, 4: 1 << 15, 5: 1 << 16}  # by version: one past its last right
READ_FOLDER = 1 << 3
READ_RIGHTS = 1 | 1 << 2 | READ_FOLDER  # execute, read file, read folder
FILE_RIGHTS = 1 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15  # those that make sense on a file
BIND_TCP, CONNECT_TCP = 1, 2
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1, 2


def main():
    if sys.argv[1] == "abi":
        sys.stdout.write(str(max(0, landlock_abi())))
        return
    spec, command = json.loads(sys.argv[1]), sys.argv[2:]
    os.closerange(3, spec["started"])
    os.closerange(spec["started"] + 1, MAX_DESCRIPTORS)
    os.set_inheritable(spec["started"], False)
    if spec["supervise"]:
        supervise(spec, command)
    become(spec, command)


def become(spec, command):
    """Give up everything the specification does not grant, say so, then exec."""
    try:
        os.chdir(spec["cwd"])
        limit(*spec["limits"])
        os.nice(spec["nice"])
        if not spec["privileged"]:
            drop_capabilities()
        check(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        if spec["landlock"] == "paths":
            restrict(spec["read"], spec["list"], spec["write"])
        elif spec["landlock"] == "processes" and landlock_abi() >= 4:
            restrict_to_own_processes()
        if spec["seccomp"]:
            seccomp(bytes.fromhex(spec["seccomp"]))
        program = find(command[0])
        os.write(spec["started"], b"1")  # from here on a failure is the command's own
        os.execv(program, command)
    except OSError as error:
        sys.stderr.write(f"sandbox: {error}\n")
        sys.stderr.flush()
        os._exit(START_FAILED)


def find(name):
    """The path of a command that may be read and executed here."""
    places = os.environ["PATH"].split(":")
    for path in [name] if "/" in name else [f"{place}/{name}" for place in places]:
        if os.access(path, os.X_OK):
            os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            return path
    raise FileNotFoundError(f"no program {name}")


def supervise(spec, command):
    """Fork; the child goes on as the command, the parent stays to clean up and never returns."""
    engine = os.getppid()
    check(LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    signal.signal(signal.SIGTERM, lambda *_: end(128 + signal.SIGTERM, engine, spec["home"]))
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()  # a signal to its own group must not reach the supervisor
        check(LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
        return
    check(LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0))
    if os.getppid() != engine:
        end(1, engine, spec["home"])
    for descriptor in (1, 2, spec["started"]):
        os.close(descriptor)  # the streams close when the last of the tree is gone
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            end(128 - code if code < 0 else code, engine, spec["home"])


def end(code, engine, home):
    """Kill every descendant, however often it forked or changed its session, then exit."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        for pid in descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            # never wait for one that the look at /proc has missed: look again
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            break
        time.sleep(0.0005)
    if os.getppid() != engine:  # nobody else is left to tidy up
        import shutil

        shutil.rmtree(home, ignore_errors=True)
    os._exit(code)


def descendants(root):
    """Every process below `root`, from one look at /proc."""
    children = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - importing pathlib costs milliseconds
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", errors="replace") as file:  # noqa: PTH123
                    text = file.read()
            except OSError:
                continue
            parent = int(text.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry))
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
        (resource.RLIMIT_NOFILE, MAX_DESCRIPTORS),
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


def restrict(read, listed, write):
    """Grant reading and writing below the given paths, no TCP, no signals outwards."""
    abi = landlock_abi()
    everything = ALL_RIGHTS[min(abi, 5)] - 1
    network = BIND_TCP | CONNECT_TCP if abi >= 4 else 0
    scoped = SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS if abi >= 6 else 0
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    handle = ruleset(struct.pack("=QQQ", everything, network, scoped)[:size])
    granted = ([*PROC, *read], READ_RIGHTS), (listed, READ_FOLDER), (write, everything)
    for paths, rights in granted:
        for path in paths:
            grant(handle, path, rights & everything)
    enforce(handle)


def restrict_to_own_processes():
    """Any Landlock rule closes /proc/PID/mem, fd and the like of processes outside of it: here
    those of bwrap's process 1, which runs without our seccomp filter. So: no TCP."""
    enforce(ruleset(struct.pack("=QQ", 0, BIND_TCP | CONNECT_TCP)))


def ruleset(attributes):
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    return check(LIBC.syscall(CREATE_RULESET, buffer, len(attributes), 0))


def enforce(handle):
    check(LIBC.syscall(RESTRICT_SELF, handle, 0))
    os.close(handle)


def grant(handle, path, rights):
    try:
        target = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(os.fstat(target).st_mode):
        rights &= FILE_RIGHTS
    rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, target), 12)
    check(LIBC.syscall(ADD_RULE, handle, 1, rule, 0))
    os.close(target)


# Of /proc only what describes the machine, and the process that will be the command.
PROC = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys", "/proc/version")


def seccomp(code):
    program = ctypes.create_string_buffer(code, len(code))
    filter_ = ctypes.create_string_buffer(
        struct.pack("@HP", len(code) // 8, ctypes.addressof(program)), 16
    )
    check(LIBC.prctl(PR_SET_SECCOMP, 2, filter_, 0, 0))


def check(result):
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


if __name__ == "__main__":
    main()
