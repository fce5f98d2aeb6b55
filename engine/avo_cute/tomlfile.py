"""TOML files that come from outside, checked against a pydantic model."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from .errors import BadInput

M = TypeVar("M", bound=BaseModel)


def read_toml(path: Path, model: type[M]) -> M:
    """The file as a `model`; `BadInput` names the file and the first key that is wrong."""
    try:
        return model.model_validate(tomllib.loads(path.read_text("utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{path}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{path}: {where}: {first['msg']}") from None
