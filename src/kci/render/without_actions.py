"""Workflow files that need no action of kci's: each step that uses one becomes the steps of that action.

kci comes as its wheel, held to a digest that the files name. The wheel has what the actions run, and the lock of
everything else with all hashes; so the one digest holds all that a job installs.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kci.config.settings import KCI_TOML, Actions
from kci.diagnostics import finding
from kci.errors import FindingsError
from kci.render.pins import OWN, Pin, action_of
from kci.render.workflow_yaml import load_workflow
from kci.version import __version__

_PLACE = "$RUNNER_TEMP/kci-wheel"
_SOURCE = ".kci-wheel"
"""Where a job has the commit's wheel, in its workspace, until it is unpacked."""


class KciWheel(msgspec.Struct, frozen=True):
    """The wheel of kci that jobs run, and where they get it."""

    place: str
    """A file of the repository, an https address, or a requirement such as `kci==1.2.3`."""
    sha256: str
    index: str = ""
    """The index for a requirement; empty for pip's own choice."""

    @property
    def in_repository(self) -> bool:
        return "://" not in self.place and "==" not in self.place


def chosen_wheel(actions: Actions, root: Path) -> KciWheel:
    """The wheel that `[actions]` of kci.toml names; FindingsError (KCI451) if it is not this kci with its digest."""

    def refuse(message: str, hint: str) -> FindingsError:
        return FindingsError(
            "no wheel of kci to run", diagnostics=[finding("KCI451", message, hint=hint, path=KCI_TOML)]
        )

    if actions.wheel is None:
        if actions.sha256 is None:
            message = "`[actions]` does not say which kci runs where no action of kci's does"
            raise refuse(message, "`wheel`, a file or an https address, or `sha256` of the wheel on an index")
        return KciWheel(f"kci=={__version__}", actions.sha256, actions.index or "")
    name = actions.wheel.rpartition("/")[2]
    if name.split("-")[1] != __version__:
        message = f"{name} is another kci than the one that renders, {__version__}"
        raise refuse(message, "render with the kci of the wheel, so that files and wheel fit")
    if "://" in actions.wheel:
        if actions.sha256 is None:
            raise refuse(f"there is no digest of {name}", "add `sha256`; `sha256sum` prints it")
        return KciWheel(actions.wheel, actions.sha256)
    file = root / actions.wheel
    try:
        if file.is_symlink():
            raise refuse(f"{actions.wheel} is a symbolic link", "put the file there")
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        with zipfile.ZipFile(file) as archive:
            whole = "kci/actions/run.sh" in archive.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        raise refuse(f"{actions.wheel} cannot be read: {error}", "`pip download --no-deps kci` fetches one") from None
    if not whole:
        raise refuse(f"{actions.wheel} has no actions in it", "build it from a checkout: `pip wheel --no-deps .`")
    if actions.sha256 not in (None, digest):
        raise refuse(f"{actions.wheel} has the digest {digest}, not the one of `sha256`", "leave `sha256` out")
    return KciWheel(actions.wheel, digest)


def action_files() -> dict[str, str]:
    """The text of the file of each of kci's actions, by name; inside of the package when installed."""
    installed = Path(__file__).parents[1] / "actions" / "steps"
    if installed.is_dir():
        return {file.stem: file.read_text(encoding="utf-8") for file in sorted(installed.glob("*.yml"))}
    root = Path(__file__).parents[3]
    found = {file.parent.name: file for file in root.glob("[a-z]*/action.yml")} | {"build": root / "action.yml"}
    return {name: file.read_text(encoding="utf-8") for name, file in sorted(found.items())}


def without_actions(text: str, wheel: KciWheel, pins: Mapping[str, Pin]) -> str:
    """A rendered file with the steps of kci's actions in place of the steps that use them."""
    import yaml

    lines, files = text.split("\n"), action_files()
    own = pins[OWN].repository or OWN
    edits: list[tuple[int, int, list[str]]] = []
    for _, job in _mapping(yaml.compose(text, Loader=yaml.SafeLoader), "jobs"):
        steps = _entry(job, "steps")
        taken = False
        for node in steps.value if steps is not None else ():
            uses = _entry(node, "uses")
            if uses is None or action_of(uses.value.partition("@")[0]) != own:
                continue
            name = uses.value.partition("@")[0].removeprefix(own).strip("/") or "build"
            first, last = node.start_mark.line, _last_line(node)
            step = load_workflow("\n".join(lines[first : last + 1]))[0]
            column = " " * (node.start_mark.column - 2)
            made = [*_fetching(wheel, pins, step), *_inlined(name, step, load_workflow(files[name]), pins)]
            edits.append((first, last + 1, [f"{column}{line}".rstrip() for line in _as_lines(made)]))
            taken = True
        allowed = _entry(job, "permissions")
        if taken and wheel.in_repository and allowed is not None and _entry(allowed, "contents") is None:
            place = allowed.value[0][0].start_mark
            edits.append((place.line, place.line, [f"{' ' * place.column}contents: read # check out kci's wheel"]))
    for first, last, new in sorted(edits, reverse=True):
        lines[first:last] = new
    return "\n".join(lines)


def _mapping(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    found = _entry(node, key)
    return ((name.value, value) for name, value in found.value) if found is not None else iter(())


def _entry(node: Any, key: str) -> Any:
    return next((value for name, value in node.value if name.value == key), None)


def _last_line(node: Any) -> int:
    """The last line of a node; what follows a block, such as a comment, does not belong to it."""
    below = [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))] \
        if isinstance(node.value, list) else []  # fmt: skip
    if below:
        return max(_last_line(item) for item in below)
    end = node.end_mark
    return int(end.line - 1 if end.column == 0 and end.line > node.start_mark.line else end.line)


# --- the wheel --------------------------------------------------------------------------------------------------------

_UNPACK = f"""\
python=$(command -v python3 || command -v python || true)
if [ -z "$python" ]; then
  echo "::error::this runner has no Python; put actions/setup-python before this step"
  exit 3
fi
rm -rf "{_PLACE}"
mkdir -p "{_PLACE}"
%s
if ! printf '%%s  %%s\\n' "$KCI_SHA256" "$wheel" | sha256sum --check --quiet; then
  echo "::error::$KCI_WHEEL is not the wheel that was rendered for"
  exit 1
fi
"$python" -m zipfile -e "$wheel" "{_PLACE}"
"""

_FROM_REPOSITORY = f"""\
wheel={_SOURCE}/$KCI_WHEEL"""
_FROM_ADDRESS = f"""\
wheel={_PLACE}/${{KCI_WHEEL##*/}}
curl --fail --silent --show-error --location --retry 3 --proto '=https' --output "$wheel" "$KCI_WHEEL\""""
_FROM_INDEX = f"""\
printf '%s --hash=sha256:%s\\n' "$KCI_WHEEL" "$KCI_SHA256" > "{_PLACE}/wanted.txt"
set -- --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes
"$python" -m pip download "$@" --requirement "{_PLACE}/wanted.txt" --dest "{_PLACE}"
wheel=$(ls "{_PLACE}"/*.whl)"""


def _fetching(wheel: KciWheel, pins: Mapping[str, Pin], step: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The steps that get the wheel and unpack it. It is the one of the workflow's commit, whatever a job checks out."""
    how = _FROM_REPOSITORY if wheel.in_repository else _FROM_ADDRESS if "://" in wheel.place else _FROM_INDEX
    condition = {"if": step["if"]} if "if" in step else {}
    env = {"KCI_WHEEL": wheel.place, "KCI_SHA256": wheel.sha256}
    env |= {"PIP_INDEX_URL": wheel.index} if wheel.index else {}
    script = "set -euo pipefail\n" + _UNPACK % how
    made = []
    if wheel.in_repository:
        options = {"persist-credentials": False, "path": _SOURCE, "sparse-checkout": wheel.place,
                   "sparse-checkout-cone-mode": False}  # fmt: skip
        made.append({"name": "Check out kci's wheel", **condition, "uses": _pinned("actions/checkout", pins),
                     "with": options})  # fmt: skip
        script += f"rm -rf {_SOURCE} # the workspace is as it was\n"
    return [*made, {"name": "Unpack kci", **condition, "shell": "bash", "env": env, "run": script}]


def _pinned(action: str, pins: Mapping[str, Pin]) -> str:
    return f"{action}@{pins[action].sha} # {pins[action].version}"


# --- the steps of an action -------------------------------------------------------------------------------------------

_INPUT = re.compile(r"(?<![\w.-])inputs\.([\w-]+)")
_STEP = re.compile(r"(?<![\w.-])steps\.([\w-]+)\.")
_OUTPUT = re.compile(r"(?<![\w.-])steps\.([\w-]+)\.outputs\.[\w-]+")
_WHOLE = re.compile(r"\$\{\{\s*(.*?)\s*\}\}", re.DOTALL)
_SCRIPTS = re.compile(r"\$GITHUB_ACTION_PATH/(?:\.\./)?actions/")
_PARTS = ("timeout-minutes", "continue-on-error")


def _inlined(
    name: str, step: Mapping[str, Any], action: Mapping[str, Any], pins: Mapping[str, Pin]
) -> Iterator[dict[str, Any]]:
    """The steps of an action with the inputs that a step gives it. The one that runs kci has the step's name and id.

    What the action is told by default and needs not be told, an empty input, is left out.
    """
    given = {key: str(spec.get("default", "")) for key, spec in action["inputs"].items()}
    given |= {key: _text(value) for key, value in step.get("with", {}).items()}
    ids = {item["id"]: f"{name}-{item['id']}" for item in action["runs"]["steps"] if "id" in item}
    ids |= {name: step.get("id", f"kci-{name}")}

    never: set[str] = set()

    def filled(value: str) -> str:
        value = _OUTPUT.sub(lambda found: "''" if found[1] in never else found[0], value)
        value = _STEP.sub(lambda found: f"steps.{ids[found[1]]}.", value)
        whole = re.fullmatch(r"\$\{\{ inputs\.([\w-]+) \}\}", value)
        if whole:
            return given[whole[1]]
        return _WHOLE.sub(lambda found: expression(_INPUT.sub(operand, found[1])), value)

    def expression(text: str) -> str:
        known = _known(text)  # `'' == 'now'` is what linters take for a trick
        return known if known in ("true", "false") else f"${{{{ {text} }}}}"

    def operand(name: re.Match[str]) -> str:
        return _as_operand(given[name[1]])

    for item in action["runs"]["steps"]:
        condition = _both(step.get("if", ""), filled(item.get("if", "")))
        if condition is None:
            never.add(item.get("id", ""))
            continue
        made = {"name": step.get("name", item["name"]) if item.get("id") == name else item["name"]}
        made |= {"id": ids[item["id"]]} if "id" in item else {}
        made |= {"if": condition} if condition else {}
        made |= {key: step[key] for key in _PARTS if key in step} | {key: item[key] for key in _PARTS if key in item}
        if "uses" in item:
            made["uses"] = _pinned(item["uses"].partition("@")[0], pins)
            made["with"] = {key: filled(_text(value)) for key, value in item["with"].items()}
        else:
            made["shell"] = item["shell"]
            made["run"] = _SCRIPTS.sub(f"{_PLACE}/kci/actions/", item["run"])
            env = {key: filled(_text(value)) for key, value in item.get("env", {}).items()}
            made |= {"env": left} if (left := {key: value for key, value in env.items() if value}) else {}
        yield made


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _as_operand(value: str) -> str:
    """What a step gives as an input, as a part of an expression."""
    pieces = _WHOLE.split(value)  # text and expressions by turns
    if len(pieces) == 3 and not pieces[0] and not pieces[2]:
        return pieces[1] if re.fullmatch(r"[\w.-]+", pieces[1]) else f"({pieces[1]})"
    if len(pieces) == 1:
        return _quoted(value)
    texts = [piece.replace("{", "{{").replace("}", "}}") for piece in pieces[::2]]
    form = "".join(f"{text}{{{number}}}" for number, text in enumerate(texts[:-1])) + texts[-1]
    return f"format({', '.join([_quoted(form), *pieces[1::2]])})"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_LITERALS = re.compile(r"'((?:[^']|'')*)' (==|!=) '((?:[^']|'')*)'")


def _both(outer: str, inner: str) -> str | None:
    """Two conditions as one; empty for always, None for never. What is known when the files are rendered goes."""
    terms = []
    for condition in (outer, inner):
        text = match[1] if (match := _WHOLE.fullmatch(condition.strip())) else condition
        terms += [_known(term) for term in _split(text, " && ")] if text else []
    if "false" in terms:
        return None
    left = list(dict.fromkeys(term for term in terms if term != "true"))
    return f"${{{{ {' && '.join(left)} }}}}" if left else ""


def _known(term: str) -> str:
    """`true`, `false`, or the term that only a run can tell."""
    if found := _LITERALS.fullmatch(term):
        return str((found[1] == found[3]) == (found[2] == "==")).lower()
    if term.startswith("(") and term.endswith(")") and len(parts := _split(term[1:-1], " || ")) > 1:
        left = [part for part in map(_known, parts) if part != "false"]
        return (
            "true" if "true" in left else left[0] if len(left) == 1 else f"({' || '.join(left)})" if left else "false"
        )
    return term


def _split(text: str, at: str) -> list[str]:
    """An expression at an operator that stands in no parentheses."""
    found, depth = [""], 0
    for piece in re.split(f"('(?:[^']|'')*'|[()]|{re.escape(at)})", text):
        depth += (piece == "(") - (piece == ")")
        if piece == at and not depth:
            found.append("")
        else:
            found[-1] += piece
    return found if "||" in at or len(_split(text, " || ")) == 1 else [f"({text})"]


# --- writing ----------------------------------------------------------------------------------------------------------


def _as_lines(steps: list[dict[str, Any]]) -> Iterator[str]:
    """Steps as YAML, with an empty line between them."""
    for number, step in enumerate(steps):
        if number:
            yield ""
        for place, (key, value) in enumerate(step.items()):
            start = "- " if not place else "  "
            if isinstance(value, dict):
                yield f"{start}{key}:"
                yield from (f"    {name}: {_scalar(item)}" for name, item in value.items())
            elif isinstance(value, str) and "\n" in value:
                yield f"{start}{key}: |"
                yield from (f"    {line}" for line in value.rstrip("\n").split("\n"))
            else:
                bare = key == "uses" or not isinstance(value, str)
                yield f"{start}{key}: {_text(value) if bare else _scalar(value, plain=True)}"


def _scalar(value: Any, *, plain: bool = False) -> str:
    text = _text(value)
    if isinstance(value, bool):
        return text
    simple = re.fullmatch(r"[A-Za-z$][^\n]*", text) and not re.search(": | #", text)
    return text if simple and (plain or re.fullmatch(r"\$\{\{.*\}\}", text)) else json.dumps(text, ensure_ascii=False)
