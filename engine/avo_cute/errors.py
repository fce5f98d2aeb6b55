"""Every error the engine raises on purpose.

    AvoError                     one clear line for the user
    ├── Refused        exit 1    asked for something that cannot be done, or nothing was found
    │   ├── BadInput             an option, a file, a revision that is not what it should be
    │   │   ├── WrongKey         the model's API does not know or does not admit the key
    │   │   ├── UnknownModel     it has no model of that name
    │   │   └── BadRequest       it refuses the request as such
    │   ├── Exhausted            credit or quota is used up: trying again does not help
    │   └── Busy                 another run holds the lineage
    └── MachineFailed  exit 3    this machine failed (disk full, sandbox missing, git broken)
        ├── ModelFailed          the model's API did not answer, however often it was asked
        └── Stopped              what was running was killed because nobody waits for it

WrongKey, UnknownModel, BadRequest, Exhausted and ModelFailed are `ModelError`s as well: they carry
what was billed before they came up.
A failing candidate is never an exception: it is a `Verdict` with a status.
Usage errors (exit 2) are click's own.
"""

from __future__ import annotations

from .records import Usage


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


class ModelError(AvoError):
    """No answer from a model. `usage` was billed all the same, by tries that broke off."""

    def __init__(self, message: str, usage: Usage | None = None) -> None:
        super().__init__(message)
        self.usage = usage or Usage()


class WrongKey(ModelError, BadInput):
    """No key, a wrong one, or one that may not do this."""


class UnknownModel(ModelError, BadInput):
    """The API has no model of this name, or no such address."""


class BadRequest(ModelError, BadInput):
    """The API refuses the request itself; the same one is refused again."""


class Exhausted(ModelError, Refused):
    """Credit, quota or a spend limit is used up. Never tried again; the run goes on later."""


class ModelFailed(ModelError, MachineFailed):
    """The API failed, was silent or broke off as often as we were ready to ask."""
