"""The command line. stdout carries the answer; a command's module is imported when it runs, for a
fast start.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click
from msgspec.structs import replace

from kci.cli._output import Options, print_error, say, use_color
from kci.errors import KciError, UsageError
from kci.utils.suggest import suggestion
from kci.version import __version__

COMMANDS = {
    "init": "write a new kernel that builds, tests and loads",
    "run": "plan, build, merge and verify on this machine",
    "matrix": "list the variants of kernels, and why each exists",
    "check": "check build.toml, sources and kci.toml",
    "update": "rewrite build.toml to edition 5",
    "schema": "print the JSON Schema of build.toml, for editors",
    "plan": "list the jobs of a run: runner, image, timeout",
    "render": "write the workflow files",
    "build": "build variants",
    "test": "load built variants and run the kernel's tests",
    "pack": "make the artifact of a built variant",
    "merge": "merge artifacts into one tree",
    "verify": "verify a tree, variant or kernel",
    "gate": "compare what the jobs of a run did with its plan",
    "sign": "sign a tree or an artifact",
    "publish": "publish a verified, complete tree to the Hub",
    "compat": "compare expected and published variants; report scheduled runs",
    "catalog": "show and check the toolchain data",
    "explain": "explain a rule and how to fix a finding",
    "doctor": "list what this machine can build, and what it lacks",
    "clean": "show or empty kci's cache",
}


_MAY_BE_EMPTY = ("matrix", "plan")
"""Commands with `--allow-empty` for a selection."""


class _ReaderGoneError(Exception):
    """The reader of the answer has closed the pipe."""


class FileName(click.Path):
    """A path; an empty name, as from an unset variable, does not mean the working directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = os.fsdecode(value)
        if not path:
            self.fail("the name is empty (the working directory is `.`)", param, ctx)
        if any(len(os.fsencode(part)) > 255 for part in Path(path).parts):
            self.fail(f"'{path[:40]}...' is too long for a name", param, ctx)
        return super().convert(value, param, ctx)


PATH = FileName(path_type=Path)
FOLDER = FileName(path_type=Path, exists=True, file_okay=False)


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def option(*words: str, **more: Any) -> Decorator:
    """An option: its names, a word for its value, and its help."""
    *names, metavar, text = words
    return click.option(*names, metavar=metavar, help=text, **more)


def repeated(*words: str, **more: Any) -> Decorator:
    """An option that may be given several times."""
    return option(*words, multiple=True, **more)


def file_option(*words: str, **more: Any) -> Decorator:
    """An option for a path."""
    return option(*words, type=PATH, **more)


def choice_option(*words: str, of: Iterable[str], **more: Any) -> Decorator:
    """An option for one of some words: its names, and its help."""
    *names, text = words
    return click.option(*names, type=click.Choice(list(of)), help=text, **more)


def flag(*words: str) -> Decorator:
    """An option without a value: its names, and its help."""
    *names, text = words
    return click.option(*names, is_flag=True, help=text)


def format_option(*forms: str) -> Decorator:
    """A `--format` option; the first form is the default."""
    names = ("--format", "output", "The output format.")
    return choice_option(*names, of=forms, default=forms[0], show_default=True)


def refuse_idle(where: str, **given: object) -> None:
    """UsageError for an option that has no effect `where` it is given."""
    for name in (name for name, value in given.items() if value):
        raise UsageError(f"--{name.replace('_', '-')} has no effect {where}", "leave it out")


class _WithExamples(click.Command):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.help, _, self.examples = inspect.cleandoc(self.help or "").partition("\n\nExamples:\n")
        # click creates a help option once, so each command names its own.
        self.context_settings = {"help_option_names": ["-h", "--help"], **self.context_settings}

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Examples"):
            for line in self.examples.splitlines():
                formatter.write(f"{'':>{formatter.current_indent}}{line.strip()}\n")


class Command(_WithExamples):
    """A command with the options of `Options`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += [
            click.Option(["-q", "--quiet"], is_flag=True, help="Print only errors to stderr."),
            click.Option(["-v", "--verbose"], is_flag=True, help="Print more to stderr."),
            click.Option(
                ["--color"],
                type=click.Choice(["auto", "always", "never"]),
                default="auto",
                help="Color the output.",
            ),
        ]

    def invoke(self, ctx: click.Context) -> Any:
        params = ctx.params
        ctx.obj = Options(**{name: params.pop(name) for name in Options._fields})
        ctx.color = use_color(ctx.obj)
        ctx.find_root().color = ctx.color
        return super().invoke(ctx)


def kci_command(function: Callable[..., Any]) -> Command:
    """A command of a function."""
    return click.command(cls=Command)(function)


class CommandGroup(_WithExamples, click.Group):
    """A group of commands, each with the common options."""

    command_class = Command


class _Commands(_WithExamples, click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"kci.cli.{cmd_name}").command
        command.short_help = COMMANDS[cmd_name]
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KciError as error:
            if ctx.invoked_subcommand in _MAY_BE_EMPTY and [
                item.rule for item in error.diagnostics
            ] == ["KCI217"]:
                hint = f"{error.hint}; --allow-empty accepts an empty selection"
                error.diagnostics = (replace(error.diagnostics[0], hint=hint),)
            print_error(error)
            return error.exit_code
        except BrokenPipeError:
            raise _ReaderGoneError from None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            hint = suggestion(args[0], list(COMMANDS))
            raise click.UsageError(f"{error.message} {hint}".strip(), ctx) from None


@click.group(cls=_Commands, context_settings={"max_content_width": 100})
@click.version_option(__version__, "-V", "--version", message="kci %(version)s")
def kci() -> None:
    """CI for GPU kernels: from build.toml to a verified tree of binaries.

    Examples:
        # write a new kernel
        kci init my-kernel
        # build what this machine can build, merge and verify it
        kci run
        # list the variants, and why each exists
        kci matrix --explain
    """


def _show(error: click.ClickException) -> None:
    hint = ""
    match error:
        case click.MissingParameter(param=click.Option(opts=["--variant"])):
            hint = "`kci matrix` lists the names; `kci run` builds all that this machine can build"
        case click.NoSuchOption(option_name="--variant", ctx=click.Context(command=command)):
            if any("--only" in param.opts for param in command.params):
                error = click.NoSuchOption("--variant", ctx=error.ctx)  # without its guess
                hint = "--only GLOB chooses variants by their names"
    error.show()
    if hint:
        say(f"  hint: {hint}")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code."""
    with suppress(ValueError):  # signals reach the main thread only
        signal.signal(signal.SIGTERM, _terminated)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _interrupted)
    try:
        code = kci.main(arguments, prog_name="kci", standalone_mode=False) or 0
        sys.stdout.flush()
    except click.ClickException as error:
        _show(error)
        code = 2
    except (KeyboardInterrupt, click.Abort):
        say("interrupted")
        code = 130
    except (BrokenPipeError, _ReaderGoneError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except UnicodeEncodeError as error:
        from kci.diagnostics import printable

        say(f"error: {printable(error.object)[:200]}: a name that is not UTF-8")
        say("  hint: rename it: neither JSON nor a workflow can hold it")
        code = 1
    except OSError as error:
        from kci.utils.atomic import failed_path, full_disk_hint

        gone = "the working directory" if isinstance(error, FileNotFoundError) else ""
        where = failed_path(error, gone)
        say(f"error: {where}{': ' * bool(where)}{error.strerror or error}")
        if hint := full_disk_hint(error) if where else "":
            say(f"  hint: {hint}")
        code = 1
    gc.freeze()  # the interpreter's last collection would take a sixth of a small command
    sys.exit(code)


def _stop(frame: FrameType | None) -> None:
    # Python ignores what a finalizer raises, so the signal is repeated until it is over
    while frame and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    if not frame:
        raise KeyboardInterrupt
    signal.signal(signal.SIGINT, lambda _number, now: _stop(now))
    main = threading.main_thread().ident
    again = (
        partial(signal.pthread_kill, main)
        if hasattr(signal, "pthread_kill") and main
        else signal.raise_signal
    )
    threading.Timer(0.05, again, (signal.SIGINT,)).start()


def _terminated(_number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the cleanup
    _stop(frame)


at_interrupt: list[Callable[[], None]] = []
"""Called at Ctrl-C, so that the screen stops at once."""


def _interrupted(_number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stop in at_interrupt:
        stop()
    with suppress(OSError):
        os.write(2, b"stopping...\n")
    _stop(frame)
