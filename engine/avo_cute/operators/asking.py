"""Asking a model within a session: whatever it costs is counted before anything else happens."""

from __future__ import annotations

from ..model import Ask, Model, ModelError, Reply
from . import Desk


def paid(session: Desk, model: Model, ask: Ask) -> Reply:
    """One reply, with its tokens counted, also when it fails after they were spent."""
    try:
        reply = model.reply(ask)
    except ModelError as error:
        session.spend(model.name, error.usage)
        raise
    session.spend(model.name, reply.usage)
    return reply
