"""The `hymo` command itself: its families of commands, and what becomes of an error.

A family is a module here that holds `app = typer.Typer()`; a new one is a file and its name in FAMILIES. A word that no command takes, a HymoError,
or a full or forbidden disk is the user's to mend: one line on stderr, exit code 2. Anything else is hymo's fault and shows its traceback. `--debug`
anywhere shows it always.
"""

import contextlib
import errno
import importlib
import os
import sys

import typer
from typer.exceptions import TyperException

from hymo.errors import HymoError

FAMILIES = ("run", "runs", "generate", "export", "plot", "ablate", "search", "compare", "eval", "model", "show", "data", "project")
USERS_DISK = {  # full, forbidden, or another thing than the path says
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG,
}  # fmt: skip

HELP = "Declare a hybrid language-model stack, train it, and decide by ablation."
app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, help=HELP)


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    version: bool = typer.Option(False, "--version", help="print the version and leave"),
    debug: bool = typer.Option(False, "--debug", help="show the traceback of every error (may stand anywhere)"),
) -> None:
    """Options of the command as a whole."""
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"hymo {installed('hymo')}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit(2)


for family in FAMILIES:
    app.add_typer(importlib.import_module(f"hymo.cli.{family}").app)


def main() -> None:
    """Run the command; leave with 0, or 2 when the user has something to mend, or 130 when interrupted."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is imported: threads that spin bring a shared machine to a crawl
    debug = "--debug" in sys.argv
    sys.argv = [sys.argv[0], *(word for word in sys.argv[1:] if word != "--debug")]
    try:
        sys.exit(app(prog_name="hymo", standalone_mode=False))
    except TyperException as error:
        if debug:
            raise
        context = getattr(error, "ctx", None)
        words = error.format_message().strip().rstrip(".")
        if "\n" in words:  # a family without a command: its help
            typer.echo(words, err=True)
            sys.exit(2)
        fail(f"{words}; `{context.command_path if context else 'hymo'} --help` says what can be given")
    except HymoError as error:
        if debug:
            raise
        fail(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of a pipe left, as `hymo show | head` does
        sys.exit(0)
    except OSError as error:
        if debug or error.errno not in USERS_DISK:
            raise
        fail(f"{error.strerror}: {error.filename or 'while writing'}; free or choose another place (run.output=FOLDER)")


def fail(message: str) -> None:
    """One line on stderr, and exit code 2, which stands even where the line finds no room: stderr may be a file on the very disk that is full."""
    with contextlib.suppress(OSError):
        typer.echo(f"hymo: {message}", err=True)
    sys.exit(2)
