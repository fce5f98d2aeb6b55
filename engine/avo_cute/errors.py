"""Every error the engine raises on purpose.

    AvoError                     one clear line for the user
    ├── Refused        exit 1    asked for something that cannot be done, or nothing was found
    │   ├── BadInput             an option, a file, a revision that is not what it should be
    │   └── Busy                 another run holds the lineage
    └── MachineFailed  exit 3    this machine failed (disk full, sandbox missing, git broken)
        └── Stopped              what was running was killed because nobody waits for it

A failing candidate is never an exception: it is a `Verdict` with a status.
Usage errors (exit 2) are click's own.
"""


class AvoError(Exception):
    """Base of all. The message names the thing and the remedy in one line."""

    exit_code = 1


class Refused(AvoError):
    """The request cannot be carried out as asked; nothing was changed."""


class BadInput(Refused):
    """A file, option or revision is not what it should be."""


class Busy(Refused):
    """Another process holds the run lock of this lineage."""


class MachineFailed(AvoError):
    """This machine, not the candidate, is at fault. Never evidence about a candidate."""

    exit_code = 3


class Stopped(MachineFailed):
    """A child was killed because the engine ends; never tried again."""
