"""The command line: a thin shell around the library. A command is a function; its docstring is its help and its examples.

Exit codes: 0 done, 1 failed, 2 bad usage or bad input. People read stderr, programs read stdout. `--debug`, anywhere in
the line, shows the traceback of an error.
"""

import inspect
import sys
import traceback
import warnings
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Annotated, Any

import typer

from calmrl._support.output import unwritable
from calmrl.cli.printing import error, note
from calmrl.cli.registry import COMMANDS
from calmrl.cli.shared_options import PLACEHOLDERS
from calmrl.errors import InputError, JobError, MissingExtraError, ProcessLost

app = typer.Typer(
    name="calmrl",
    help="Multimodal representations when modalities are missing.",
    epilog="\b\nExample:\n  calmrl demo --out demo-out\n  calmrl COMMAND --help",
    rich_markup_mode=None,
    add_completion=True,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name, place in COMMANDS.items():
    command = resolve_name(f"calmrl.cli.{place}")
    about, example, lines = inspect.cleandoc(command.__doc__).partition("Example:\n")
    app.command(name, help=about, epilog=f"\b\n{example}{lines}")(command)


def _version(wanted: bool) -> None:
    if wanted:
        from calmrl import __version__

        print(f"calmrl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and stop.", callback=_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Multimodal representations when modalities are missing."""


def _show_warning(message: Warning | str, *where: object, **more: object) -> None:
    note(f"calmrl: warning: {message}")


def program() -> Any:
    """All commands as the shell sees them; values of options are called by what they are, not by their type in Python."""
    group: Any = typer.main.get_command(app)
    for command in group.commands.values():
        for parameter in command.params:
            if parameter.param_type_name == "option" and parameter.metavar is None:
                parameter.metavar = PLACEHOLDERS.get(parameter.opts[0])
    return group


def main(arguments: Sequence[str] | None = None) -> None:
    """The command `calmrl`. Always leaves through SystemExit with code 0, 1 or 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            program()(args=[part for part in words if part != "--debug"], prog_name="calmrl")
    except SystemExit as stop:
        if stop.code in (0, 1, 2, None):
            raise
        error("stopped")  # 130: the user pressed Ctrl-C
        raise SystemExit(1) from None
    except Exception as problem:
        sentence = unwritable(problem) if isinstance(problem, OSError) else None
        by_user = sentence is not None or isinstance(problem, (InputError, MissingExtraError))
        if "--debug" in words:
            traceback.print_exc()
        elif by_user or isinstance(problem, (JobError, ProcessLost)):
            error(sentence or str(problem))
        else:
            error(f"{type(problem).__name__}: {' '.join(str(problem).split())}")
            note("add --debug to see where")
        raise SystemExit(2 if by_user else 1) from None
