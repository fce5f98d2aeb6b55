"""The command line: parses, prints, and maps errors to exit codes. Imports stay light.

Exit codes: 0 done, 1 refused or nothing found, 2 usage, 3 this machine failed, 130 stopped by a
second Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from .. import __version__
from ..errors import AvoError
from . import browse, doctor, evolve, knowledge, run, serve, take, verify


class Main(click.Group):
    """One clear line on stderr for every error; a traceback only with --debug."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["standalone_mode"] = False
        try:
            result = super().main(*args, **kwargs)
        except click.exceptions.Exit as done:
            sys.exit(done.exit_code)
        except click.ClickException as error:  # usage, exit code 2
            error.show()
            sys.exit(error.exit_code)
        except (KeyboardInterrupt, click.Abort):
            click.echo("avo-cute: stopped; the lineage holds every finished attempt", err=True)
            sys.exit(130)
        except BrokenPipeError:  # `avo-cute log | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        except AvoError as error:
            _refuse(str(error), error.exit_code)
        except OSError as error:
            _refuse(f"{error.filename or 'this machine'}: {error.strerror or error}", 3)
        except Exception as error:
            _refuse(f"internal error: {type(error).__name__}: {error} (--debug shows where)", 3)
        sys.exit(result if isinstance(result, int) else 0)


def _refuse(line: str, code: int) -> None:
    if _debugging():
        raise
    click.echo(f"avo-cute: {' '.join(line.split())}", err=True)
    sys.exit(code)


def _debugging() -> bool:
    return "--debug" in sys.argv[1:] or os.environ.get("AVO_CUTE_DEBUG", "") not in ("", "0")


def _tell_version(context: click.Context) -> None:
    from ..build.toolchain import toolchain
    from ..errors import MachineFailed

    try:
        built_with = toolchain()
    except MachineFailed as error:
        built_with = f"no toolchain: {error}"
    python = ".".join(map(str, sys.version_info[:3]))
    click.echo(f"avo-cute {__version__}\n{built_with}; Python {python}")
    context.exit()


@click.group(
    cls=Main,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with `avo-cute doctor`, then `avo-cute evolve --attempts 8`.",
)
@click.option("--debug", is_flag=True, help="Show a traceback when something fails.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, wanted: _tell_version(context) if wanted else None,
    help="Show the version, and the toolchain that candidates are built with.",
)
def main(debug: bool) -> None:
    """Evolve CUTLASS CuTe-DSL kernels; every candidate is a git commit with its score."""


for command in (
    doctor.doctor,
    run.init,
    evolve.evolve,
    evolve.ablate,
    serve.mcp,
    run.evaluate,
    run.record,
    verify.verify,
    browse.log,
    browse.show,
    browse.best,
    browse.attempts,
    browse.diff,
    browse.checkout,
    take.export,
    take.check_fork,
    knowledge.knowledge,
):
    main.add_command(command)
