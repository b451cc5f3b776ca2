"""The templates that kci ships: where they are, and the one way in which they are filled in."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jinja2


def template_folder() -> Path:
    """Inside the package when installed, next to `src` in a checkout."""
    installed = Path(__file__).parents[1] / "templates"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "templates"


@cache
def template_environment() -> jinja2.Environment:
    """Templates with `[[ ]]` for values and `[% %]` for statements; `${{ }}` and `{{ }}` belong to what is written."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # Sandboxed, because a repository may bring templates, and a pull request may change them. Nothing is escaped as
    # HTML: each template quotes as the language of its file does.
    environment = ImmutableSandboxedEnvironment(
        loader=jinja2.FileSystemLoader(template_folder()),
        variable_start_string="[[",
        variable_end_string="]]",
        block_start_string="[%",
        block_end_string="%]",
        comment_start_string="[#",
        comment_end_string="#]",
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment


@cache
def html_environment() -> jinja2.Environment:
    """Templates of pages, with the engine's usual `{{ }}`; every value is escaped."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(template_folder()),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def integrity(text: str) -> str:
    """How a policy in a page names a style or a script that it allows."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def tidy(text: str) -> str:
    """No trailing blanks, no run of empty lines, one newline at the end."""
    lines: list[str] = []
    for line in (line.rstrip() for line in text.split("\n")):
        if line or (lines and lines[-1]):
            lines.append(line)
    return "\n".join(lines).strip("\n") + "\n"
