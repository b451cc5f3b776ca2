"""What rendering says: how large a run gets, and what has to be set on GitHub beside the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import failure, refusal
from kci.errors import UsageError
from kci.plan.workspace import open_workspace
from kci.workflows.render import COMPAT_FILE, KERNEL_FILE, RELEASE_FILE
from kci.workflows.repository import (
    RenderedFiles,
    render_workflows,
    settings_text,
    with_growth,
)
from many_kernels import make_repository
from planning import parse_settings


def render(root: Path) -> RenderedFiles:
    return render_workflows(open_workspace([root]), root, [str(root)])


def said(rendered: RenderedFiles) -> list[str]:
    return [item.rule for item in rendered.diagnostics if item.rule not in ("KCI401",)]


@pytest.mark.rule("KCI419", triggers=False)
def test_the_52_kernels_of_a_real_repository_fit(tmp_path: Path) -> None:
    rendered = render(make_repository(tmp_path, 52))
    assert set(rendered.files) == {RELEASE_FILE, COMPAT_FILE, KERNEL_FILE}
    assert said(rendered) == []
    assert 'callers: "1"' in rendered.files[RELEASE_FILE]


@pytest.mark.rule("KCI419", triggers=True)
def test_300_kernels_need_groups(tmp_path: Path) -> None:
    root = make_repository(tmp_path, 300)
    found = refusal(render, root)
    assert {item.rule for item in found} == {"KCI419"}
    assert '"backend"' in found[0].hint
    (root / "kci.toml").write_text('[plan]\ngroup = "backend"\n')
    rendered = render(root)
    assert 'callers: "2"' in rendered.files[RELEASE_FILE]
    assert "kernels-2:" in rendered.files[RELEASE_FILE]
    assert max(len(text) for text in rendered.files.values()) < 25_000


def test_a_kernel_is_below_the_root_of_the_files(tmp_path: Path) -> None:
    workspace = open_workspace([make_repository(tmp_path / "kernels", 1)])
    failure(UsageError, "not below", render_workflows, workspace, tmp_path / "x", [str(tmp_path)])


def test_room_for_growth() -> None:
    assert [with_growth(number) for number in (0, 1, 4, 52, 160, 161)] == [0, 2, 5, 65, 200, 202]


RUNNERS = '[runners.cuda.x86_64-linux]\nlabels = ["self-hosted"]\n'
FORKS = '[pull-request]\nforks = "dispatch"\n'


@pytest.mark.parametrize(
    ("word", "needed_by"),
    [
        ("status check `kci`", ""),
        ("self-hosted runners that", RUNNERS),
        ("make `kci-own-machines`, with required reviewers", FORKS),
        ("commit status `kci/own-machines`", FORKS),
    ],
)
def test_a_setting_is_named_where_it_is_needed(word: str, needed_by: str) -> None:
    for text in ("", RUNNERS, FORKS):
        said = "\n".join(settings_text(parse_settings(text.encode())))
        assert (word in said) is (needed_by in ("", text)), text
