"""Which GPUs are measured on, one process at a time on each, also between runs of one machine.

A lock file per GPU, and a queue of tickets before them: files that their owners hold locked, so
the kernel takes back what belonged to an engine that died, however it died.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput, MachineFailed
from ..gpu import find_gpus, target_of

POLL_S = 0.02
_TICKET = re.compile(r"\d{12}\.ticket")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU by its place on the bus, as `--devices` counts, and by the name it has for ever.

    `model` is NVML's name of its kind.
    """

    index: int
    uuid: str = ""
    model: str = ""

    @property
    def name(self) -> str:
        """For CUDA_VISIBLE_DEVICES."""
        return self.uuid or str(self.index)

    def answers_to(self, word: str) -> bool:
        """Whether CUDA_VISIBLE_DEVICES can mean it by `word`: its index or how its UUID begins.

        Parts of a GPU (MIG-…) are none: a part is no target.
        """
        return word == str(self.index) or (word.startswith("GPU-") and self.uuid.startswith(word))

    def __str__(self) -> str:
        """For people."""
        return f"GPU {self.index}" + (f" ({self.model})" if self.model else "")

    @property
    def lock_name(self) -> str:
        return re.sub(r"[^A-Za-z0-9-]", "_", self.name) + ".lock"


def find_devices(
    wanted: str = "", target: str = "", told: Callable[[str], None] = lambda _: None
) -> tuple[Gpu, ...]:
    """The GPUs of `--devices` ("0,1"), or all that this process may use, in the bus's order.

    Only those of `target` (its name; "" for any). Where nothing is asked for,
    CUDA_VISIBLE_DEVICES is obeyed as CUDA does, and what is there but left out is `told` in one
    line. Empty where there is none. `BadInput`: one that was asked for is not there, or another
    model.
    """
    there = _gpus()
    if wanted:
        return _asked_for(wanted, there, target)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    seen = there if visible is None else _visible(visible, there)
    if there and not seen:
        told(f"CUDA_VISIBLE_DEVICES={visible} leaves no GPU to measure on")
    found = tuple(gpu for gpu in seen if _fits(gpu, target))
    if others := ", ".join(map(str, (gpu for gpu in seen if gpu not in found))):
        told(f"not measured on, as the target is {target}: {others}")
    return found


def names(wanted: str) -> set[str]:
    """The words of `--devices`; `BadInput` where there is none."""
    words = {word.strip() for word in wanted.split(",") if word.strip()}
    if not words:
        raise BadInput(f"--devices {wanted!r} names no GPU: give numbers, e.g. 0,1, or none")
    return words


def _asked_for(wanted: str, there: tuple[Gpu, ...], target: str) -> tuple[Gpu, ...]:
    words = names(wanted)
    if not there:
        raise BadInput(f"--devices {wanted}: this machine has no GPU")
    if not all(any(gpu.answers_to(word) for gpu in there) for word in words):
        known = ", ".join(map(str, there))
        raise BadInput(f"--devices {wanted}: no such GPU; this machine has {known}")
    found = tuple(gpu for gpu in there if any(gpu.answers_to(word) for word in words))
    if others := ", ".join(str(gpu) for gpu in found if not _fits(gpu, target)):
        raise BadInput(f"--devices {wanted}: the target is {target}, which is not {others}")
    return found


def _visible(text: str, there: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """What CUDA shows: it reads up to the first word that it does not know, such as -1.

    Numbers are taken in the bus's order, as with CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    seen = []
    for word in text.split(","):
        meant = [gpu for gpu in there if gpu.answers_to(word.strip())]
        if len(meant) != 1:
            break
        seen += meant
    return tuple(gpu for gpu in there if gpu in seen)


def _fits(gpu: Gpu, target: str) -> bool:
    return not target or target_of(gpu.model) == target


class Devices:
    """GPUs shared with every other engine that uses the same `folder`; safe for threads.

    `told` is called with one line the first time that another process is waited for.
    """

    def __init__(
        self, gpus: Sequence[Gpu], folder: Path, told: Callable[[str], None] = lambda _: None
    ) -> None:
        self.gpus = tuple(gpus)
        self._folder, self._told = folder, told
        self._silent = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MachineFailed(f"no folder for device locks: {error}") from None

    def only(self, gpu: Gpu) -> Devices:
        """Just one of them, with the same locks."""
        return Devices((gpu,), self._folder, self._told)

    @contextlib.contextmanager
    def one(self) -> Iterator[Gpu]:
        """Hold a GPU alone; whoever asked first is served first, unless it wants only others."""
        with contextlib.ExitStack() as held:
            with contextlib.ExitStack() as queue:
                ticket = self._take_ticket(queue)
                while (gpu := self._try(ticket, held)) is None:
                    self._say_who()
                    time.sleep(POLL_S)
            yield gpu

    def _take_ticket(self, queue: contextlib.ExitStack) -> Path:
        """A file with the next number, that names what we wait for, locked as long as we wait."""
        with contextlib.ExitStack() as counter:
            count = _lock(self._folder / "queue.lock", counter, wait=True)
            assert count is not None
            number = int(os.pread(count, 20, 0) or b"0") + 1
            os.pwrite(count, str(number).encode(), 0)
            unnamed = self._folder / f"{number:012d}.new"
            handle = _lock(unnamed, queue, wait=True)
            assert handle is not None
            os.write(handle, "\n".join(gpu.lock_name for gpu in self.gpus).encode())
            ticket = unnamed.with_suffix(".ticket")
            unnamed.rename(ticket)  # only now can others see it, and find it locked
        queue.callback(ticket.unlink, missing_ok=True)
        return ticket

    def _try(self, ticket: Path, held: contextlib.ExitStack) -> Gpu | None:
        """Lock the first GPU that is free and that nobody waits for longer than we do."""
        older = [path for path in self._tickets() if path.name < ticket.name]
        promised = {name for path in older for name in _wants(path)}
        for gpu in self.gpus:
            if gpu.lock_name not in promised:
                handle = _lock(self._folder / gpu.lock_name, held, wait=False)
                if handle is not None:
                    os.ftruncate(handle, 0)
                    os.pwrite(handle, str(os.getpid()).encode(), 0)
                    return gpu
        return None

    def _say_who(self) -> None:
        """Say once who is waited for, if that is not ourselves."""
        for gpu in () if self._silent else self.gpus:
            holder = _locked_text(self._folder / gpu.lock_name)
            if holder and holder != str(os.getpid()):
                self._silent = True
                which = f"GPU {gpu.index}" if len(self.gpus) == 1 else "a GPU"
                self._told(f"waiting for {which}: process {holder} is measuring")

    def _tickets(self) -> list[Path]:
        return sorted(p for p in self._folder.iterdir() if _TICKET.fullmatch(p.name))


def _wants(ticket: Path) -> list[str]:
    """The locks that a ticket's owner waits for; none where it has died, and the ticket goes."""
    text = _locked_text(ticket)
    if text is None:
        ticket.unlink(missing_ok=True)  # numbers never come again: it cannot be another's
        return []
    return text.split("\n")


def _locked_text(path: Path) -> str | None:
    """What the holder of a locked file has written into it, None where nobody holds it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(handle, 1 << 16, 0).decode("utf-8", "replace")
    else:
        return None
    finally:
        os.close(handle)


def _lock(path: Path, held: contextlib.ExitStack, *, wait: bool) -> int | None:
    """Lock a file until `held` is left; None where another has it and we do not wait."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(handle)
        return None
    held.callback(os.close, handle)
    return handle


def _gpus() -> tuple[Gpu, ...]:
    return tuple(Gpu(found.index, found.uuid, found.name) for found in find_gpus())
