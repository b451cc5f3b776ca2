"""What a moved range of toolchains asks of a repository, as far as kci.toml lets it; and a year of it."""

from __future__ import annotations

import json
import random
import tomllib
from pathlib import Path

import pytest

from buildkit import write_tree
from cli.runner import kci
from kci.catalog.loading import interpret_edition, load_catalog
from kci.config.document import parse_document
from kci.errors import FindingsError
from kci.matrix.names import Kind, variant_name
from kci.moves.next_catalog import next_catalog
from kci.moves.proposals import CATALOG_FILE, wanted_moves
from kci.moves.pull_requests import EDITION_BRANCH, MIGRATE, PullActionKind, WantedPull, carry_out_pulls, decide_pulls
from kci.workspace.workspace import Workspace, open_workspace
from matrix.test_next_edition import NEW, RELEASES, page, wheels
from moves.test_pull_requests import BOT, GitHub

KERNEL = """
[general]
name = "{name}"
version = 1
edition = 5
license = "MIT"
backends = ["cpu"]

[torch]
src = ["a.cpp"]
{bounds}
[kernel.part]
backend = "cpu"
depends = ["torch"]
src = ["a.cpp"]
"""
DAY = "2026-11-22"
BEFORE = 'catalog = "2026-09-17"'
"""The edition that the pages are newer than."""


def settings(level: str, *more: str, catalog: str = "") -> str:
    lines = [f'pull-requests = "{level}"', 'indexes = ["pages/index.html"]', *more]
    return "\n".join([catalog or BEFORE, "# mine", "[schedule.moves]", *lines, ""])


def repository(folder: Path, level: str = "kernels", *, names: list[str] = NEW, **kernels: str) -> Path:
    files = {f"kernels/{name}/build.toml": KERNEL.format(name=name, bounds=bounds) for name, bounds in kernels.items()}
    files |= {f"kernels/{name}/torch-ext/{name.replace('-', '_')}/__init__.py": "" for name in kernels}
    files |= {f"kernels/{name}/a.cpp": "" for name in kernels}
    files |= {"kci.toml": settings(level), "pages/index.html": page(*names), ".git/HEAD": ""}
    return write_tree(folder / "repository", files)


def workspace(place: Path) -> Workspace:
    return open_workspace([str(place)])


def wanted(place: Path, day: str = DAY) -> dict[str, WantedPull]:
    return {pull.branch: pull for pull in wanted_moves(workspace(place), day).wanted}


def test_nothing_is_proposed_unless_kci_toml_says_so(tmp_path: Path) -> None:
    place = repository(tmp_path, relu='minver = "2.9"')
    (place / "kci.toml").write_text("")
    (place / "pages" / "index.html").unlink()
    assert wanted_moves(workspace(place), DAY).wanted == ()


def test_the_edition_alone(tmp_path: Path) -> None:
    place = repository(tmp_path, "edition", relu='minver = "2.9"')
    (pull,) = wanted(place).values()
    assert (pull.branch, pull.title) == (EDITION_BRANCH, "Toolchains: torch 2.14, 2.15")
    files = {file.path: file.text for file in pull.files}
    assert tomllib.loads(files["kci.toml"])["catalog"] == CATALOG_FILE
    assert files["kci.toml"].endswith(settings("edition", catalog=f'catalog = "{CATALOG_FILE}"'))
    made = interpret_edition(parse_document(files[CATALOG_FILE].encode(), CATALOG_FILE))
    assert {row.torch.text for row in made.rows if row.bundled} == {"2.14", "2.15"}
    assert "relu: 3 come, 3 go, 0 change" in pull.body
    assert " runner minutes; up to " in pull.body
    assert "relu: torch-minver: remove `torch.minver = 2.9`" in pull.body


def test_what_is_merged_is_not_proposed_again(tmp_path: Path) -> None:
    place = repository(tmp_path, relu='minver = "2.14"')
    first = wanted(place)
    assert set(first) == {EDITION_BRANCH}, "2.13 is still tested, as the oldest that is loaded"
    for file in first[EDITION_BRANCH].files:
        (place / file.path).write_text(file.text)
    assert wanted(place, "2027-01-01") == {}


def test_a_day_on_which_nothing_happens_changes_nothing(tmp_path: Path) -> None:
    place = repository(tmp_path, relu='minver = "2.9"')
    first, second = wanted(place), wanted(place, "2026-11-29")
    assert {name: pull.content for name, pull in first.items()} == {name: pull.content for name, pull in second.items()}
    assert first[EDITION_BRANCH].files != second[EDITION_BRANCH].files, "the edition is named after the day"


def test_a_toolchain_of_the_compat_tier_alone_is_no_move(tmp_path: Path) -> None:
    assert wanted(repository(tmp_path, names=[*RELEASES, *wheels("2.15.0.dev20261122", "cu136")], relu="")) == {}


def test_a_pull_request_for_each_kernel_that_kci_can_change(tmp_path: Path) -> None:
    place = repository(tmp_path, names=RELEASES, relu='minver = "2.9"', norm="", silu='maxver = "2.13"')
    found = wanted_moves(workspace(place), DAY)
    (pull,) = found.wanted
    assert (pull.branch, pull.title) == (f"{MIGRATE}relu", "relu: remove `torch.minver = 2.9`")
    (file,) = pull.files
    assert file.path == "kernels/relu/build.toml"
    assert "minver" not in file.text
    assert "by hand" not in pull.body
    (two,) = wanted_moves(
        workspace(repository(tmp_path / "two", names=RELEASES, relu='minver = "2.9"\nmaxver = "2.13"')), DAY
    ).wanted
    assert "by hand: " in two.body
    assert EDITION_BRANCH not in pull.body, "it need not wait"
    assert found.by_hand == ("silu: support torch 2.14: build and test with it, then raise the bound",)
    (place / file.path).write_text(file.text)
    assert wanted(place) == {}


def test_only_the_migrations_that_kci_toml_names(tmp_path: Path) -> None:
    place = repository(tmp_path, names=RELEASES, relu='minver = "2.9"')
    (place / "kci.toml").write_text(settings("kernels", 'migrations = ["edition"]'))
    assert wanted(place) == {}
    (place / "kci.toml").write_text(settings("kernels", 'migrations = ["torch-minvr"]'))
    done = kci("check", place)
    assert done.code == 1
    assert "KCI330" in done.stderr
    assert "torch-minver" in done.stderr


def test_two_kernels_of_one_name_have_two_branches(tmp_path: Path) -> None:
    place = repository(tmp_path, names=RELEASES, relu='minver = "2.9"')
    write_tree(
        place, {"more/relu/build.toml": KERNEL.format(name="relu", bounds='minver = "2.9"'), "more/relu/a.cpp": ""}
    )
    found = wanted(place)
    assert len(found) == 2
    assert all(name.startswith(f"{MIGRATE}relu-") for name in found)


@pytest.mark.parametrize("catalog", ["2026-09-17", "mine.toml"])
def test_where_the_edition_goes(tmp_path: Path, catalog: str) -> None:
    place = repository(tmp_path, "edition", relu="")
    (place / "mine.toml").write_text(load_catalog("2026-09-17").document.text)
    (place / "kci.toml").write_text(settings("edition", catalog=f'catalog = "{catalog}" # ours'))
    files = {file.path: file.text for file in wanted(place)[EDITION_BRANCH].files}
    if catalog == "mine.toml":
        assert set(files) == {"mine.toml"}
    else:
        assert files["kci.toml"] == settings("edition", catalog=f'catalog = "{CATALOG_FILE}" # ours')


def test_an_overlay_is_not_written_over(tmp_path: Path) -> None:
    place = repository(tmp_path, "edition", relu="")
    (place / "mine.toml").write_text('edition = "2026-09-17"\n[[remove]]\nwhere = "torch == 2.11"\nreason = "old"\n')
    (place / "kci.toml").write_text(settings("edition", catalog='catalog = "mine.toml"'))
    with pytest.raises(FindingsError, match="overlay"):
        wanted(place)


@pytest.mark.parametrize("text", [None, "", "<html>down for maintenance</html>"])
def test_a_listing_that_cannot_be_read_proposes_nothing_and_says_so(tmp_path: Path, text: str | None) -> None:
    place = repository(tmp_path, relu='minver = "2.9"')
    (place / "pages" / "index.html").unlink() if text is None else (place / "pages" / "index.html").write_text(text)
    done = kci("compat", "moves", place)
    assert done.code == 1
    assert "index.html" in done.stderr
    assert done.stdout == ""


def test_a_text_of_the_repository_cannot_end_the_block_in_which_it_is_shown(tmp_path: Path) -> None:
    place = repository(tmp_path, "edition", relu="")
    file = place / "kernels" / "relu" / "build.toml"
    label = '[kernel."x\\n``` @everyone"]'
    text = file.read_text().replace("[kernel.part]", label).replace('"cpu"', '"cuda"')
    file.write_text(text + 'cuda-capabilities = ["10.1"]\n')
    body = wanted(place)[EDITION_BRANCH].body
    assert "@everyone" in body
    assert body.count("```") == 2


def test_the_command_prints_what_would_be_proposed(tmp_path: Path) -> None:
    place = repository(tmp_path, relu='minver = "2.9"')
    done = kci("compat", "moves", place, "--as-of", DAY)
    assert done.code == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{EDITION_BRANCH}: Toolchains: torch 2.14, 2.15 ({CATALOG_FILE}, kci.toml)",
        f"{MIGRATE}relu: relu: remove `torch.minver = 2.9` (kernels/relu/build.toml)",
        "2 pull requests wanted",
    ]
    told = json.loads(kci("compat", "moves", place, "--format", "json").stdout)
    assert [item["branch"] for item in told["moves"]["wanted"]] == [EDITION_BRANCH, f"{MIGRATE}relu"]


# --- a year -----------------------------------------------------------------------------------------------------------


class YearOfMoves:
    """A repository of three kernels and its GitHub, for 365 scheduled runs in which the range moves twice.

    The reference takes a new torch up bit by bit over some days, listings are sometimes away, the same day is sometimes
    run twice, nightlies come and go, and a person merges or closes what was proposed some days later.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.place = repository(folder, names=[], relu='minver = "2.9"', norm="", silu='maxver = "2.15"')
        self.world(0, down=0)
        pages = self.place / "pages"
        now = next_catalog(workspace(self.place), "2026-01-01", [str(pages / "index.html")], str(pages / "table.json"))
        (self.place / "mine.toml").write_text(now.text)
        table, catalog = 'table = "pages/table.json"', 'catalog = "mine.toml"'
        (self.place / "kci.toml").write_text(settings("kernels", table, catalog=catalog))
        self.hub = GitHub()
        self.opened: dict[str, list[int]] = {}
        self.updates = self.outages = self.left = 0

    def world(self, day: int, down: float = 0.04) -> None:
        """The pages of a day."""
        newest = 14 + sum(day >= move for move in MOVES)
        fresh = next((day - move for move in MOVES if 0 <= day - move < 9), 9)
        torches = [(2, newest - 1, 9), (2, newest, fresh)]
        names = [variant_name(Kind.FULL, "cpu", "x86_64-linux", torch[:2], None) for torch in torches]
        for major, minor, since in torches:
            for number, toolkit in enumerate([(12, 6), (13, 0), (13, 2)]):
                if since >= 3 * number:
                    names.append(variant_name(Kind.FULL, "cuda", "x86_64-linux", (major, minor), toolkit))
        table = {"x86_64-linux": {kind: [name for name in names if f"-{mark}" in name]
                                  for kind, mark in (("cpu", "cpu"), ("cuda", "cu1"))}}  # fmt: skip
        listed = [wheel for minor in range(13, newest + 1) for wheel in wheels(f"2.{minor}.0", "cpu", "cu126")]
        if day % 7:
            listed += wheels(f"2.{newest + 1}.0.dev2026{day:04d}", f"cu13{day % 3}")
        (self.place / "pages" / "table.json").write_text(json.dumps(table))
        (self.place / "pages" / "index.html").write_text(page(*listed) if self.chance.random() >= down else "down")

    def run(self, day: int) -> None:
        """One scheduled run."""
        try:
            found = wanted_moves(workspace(self.place), f"{2026 + day // 365}-01-01").wanted
        except FindingsError:
            self.outages += 1
            return
        tracker = self.hub.tracker()
        actions = decide_pulls(found, list(tracker.pulls([pull.branch for pull in found])), 5)
        for action in actions:
            if action.kind is PullActionKind.OPEN:
                self.opened.setdefault(action.branch, []).append(day)
            self.updates += action.kind is PullActionKind.UPDATE
            self.left += action.kind is PullActionKind.LEAVE
        carry_out_pulls(actions, tracker)
        for branch in {pull["head"]["ref"] for pull in self.hub.pulls}:
            there = [pull for pull in self.hub.pulls if pull["head"]["ref"] == branch and pull["state"] == "open"]
            assert len(there) <= 1, branch

    def people(self, day: int) -> None:
        """Somebody merges what has been open for twelve days."""
        for pull in self.hub.pulls:
            branch = pull["head"]["ref"]
            if pull["state"] == "open" and day >= self.opened[branch][-1] + 12:
                for path, text in self.hub.files(branch).items():
                    (self.place / path).write_text(text)
                pull.update(state="closed", merged_at="2026-01-01T00:00:00Z")
                del self.hub.code["refs"][branch]


MOVES = (120, 250)
"""Days on which the oldest torch goes and a new one comes."""

WHOLE = pytest.mark.slow  # 365 scheduled runs, each of which reads the repository as the workflow does


@pytest.mark.parametrize(
    ("seed", "days"),
    [(3, range(110, 140)), pytest.param(1, range(365), marks=WHOLE), pytest.param(2, range(365), marks=WHOLE)],
)
def test_a_year_has_one_pull_request_for_each_move(
    seed: int, days: range, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kci.moves.proposals.impact_lines", lambda *_: ["what it takes is not what is asked here"])
    monkeypatch.setattr("kci.moves.proposals.impact", lambda *_: None)
    year = YearOfMoves(tmp_path, seed)
    for day in days:
        year.world(day)
        for _ in range(1 + (year.chance.random() < 0.1)):
            year.run(day)
        year.people(day)
    assert all(pull["user"]["login"] == BOT for pull in year.hub.pulls)
    editions = year.opened.pop(EDITION_BRANCH)
    moves = [day for day in sorted(MOVES) if day in days]
    with capsys.disabled():
        print(
            f"\nyear {seed}: {len(days)} days, {len(moves)} moves, pull requests with editions on days {editions}, "
            f"for kernels {year.opened}, {year.updates} updates, {year.outages} runs without a listing"
        )
    assert len(editions) == len(moves), "one for each move, and no other"
    assert all(0 <= opened - move < 5 for opened, move in zip(editions, moves, strict=True)), "unless a listing is away"
    assert [pull["head"]["ref"] for pull in year.hub.pulls].count(EDITION_BRANCH) == len(moves)
    assert year.outages
    assert year.updates
