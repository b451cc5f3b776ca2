"""`kci publish` against a Hub on this machine: what lands there, and what happens when something
goes wrong.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import OfflineModeIsEnabled

from buildkit import write_tree
from cli.runner import Result, ended, kci
from conftest import failure, only, refusal, write_noarch
from kci.diagnostics import Diagnostic
from kci.errors import FindingsError, MissingToolError
from kci.matrix.variants import parse_variant_name
from kci.publish import hub_branch
from kci.publish.branch_plan import read_release
from kci.publish.hub import publisher_access, reader_access
from kci.publish.hub_branch import HubKernel
from kci.publish.publish import ATTEMPTS, PublishedBranch, Publisher, PublishState
from kci.tree.identity import GitState, file_hash
from kci.tree.manifest import encode as encode_manifest
from kci.tree.manifest import read_manifest
from kci.tree.merge import merge
from kci.tree.metadata import encode, metadata_for
from kci.tree.top_level import decode_sums, encode_sums
from kci.tree.verify import verify
from publish.fake_hub import TOKEN, FakeHub, Fault, serving
from variants import COMMIT, build_of, make_artifact, make_variant, tree_plan

# huggingface_hub uploads in a way that its HTTP library wants to be done differently.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

REPO = "acme/gated-norm"
OTHER = "torch212-cxx11-cpu-x86_64-linux"


def hub_environment(hub: FakeHub, home: Path) -> dict[str, str]:
    """Variables with which huggingface_hub talks to this hub and to nothing else."""
    return {
        "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
    }  # fmt: skip


def _log_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)


token = pytest.fixture(_log_in)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    from huggingface_hub import constants

    for name in (*os.environ,):
        if name.startswith(("HF_", "HUGGING", "ACTIONS_ID", "GITHUB_ACTIONS")):
            monkeypatch.delenv(name)
    with serving(FakeHub(REPO)) as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        files = f"{running.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "home" / "token"))
        _log_in(monkeypatch)
        # A command that is not told otherwise has nothing to wait for.
        hasty = functools.partial(Publisher, wait=never)
        monkeypatch.setattr("kci.publish.publish.Publisher", hasty)
        yield running


def never(seconds: float) -> None:
    raise AssertionError(f"it waited {seconds} seconds")


@pytest.fixture
def anonymous(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")


def library(
    unique: str = "1a2b3c4", *, backend: str = "cpu", size: int = 3000
) -> dict[str, str | bytes]:
    """A Python-only stand-in: files large enough to be uploaded as the Hub uploads binaries."""
    return {
        "__init__.py": "from ._ops import ops\n",
        "_ops.py": f"ops = None\n# _gated_norm_{backend}_{unique}\n",
        "data.bin": f"{unique}{backend}".encode() * size,
    }


def make_tree(
    place: Path, variants: tuple[str, ...] = ("torch-cpu", "torch-cuda"), *,
    unique: str = "1a2b3c4", plan: bool = True,
    planned: tuple[str, ...] = (), version: int = 1, into: Path | None = None, commit: str = COMMIT,
    committed: int | None = None, prints: dict[str, str] | None = None,
) -> Path:  # fmt: skip
    """A merged tree of variants of Python only, which a test machine can verify without
    compilers.
    """
    tree = into or place / "tree"
    for variant in variants:
        backend = variant.removeprefix("torch-")
        made = make_variant(
            place / f"parts-{unique}", variant, unique=unique, version=version,
            files=library(unique, backend=backend),
            archs=("8.0",) if backend == "cuda" else None, source=GitState(commit, dirty=False),
            committed=committed,
        )  # fmt: skip
        make_artifact(place / f"artifacts-{unique}" / variant, made)
    of = commit if prints else None
    promise = tree_plan(*(planned or variants), version=version, prints=prints, commit=of)
    merge([place / f"artifacts-{unique}"], tree, promise if plan else None, allow_partial=True)
    return tree


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A complete tree of two variants."""
    return make_tree(tmp_path)


def publish(tree: Path, *options: str | Path, **environment: str) -> Result:
    return kci("publish", tree, "--repo-id", REPO, *options, **environment)


def published(tree: Path, *options: str | Path) -> str:
    """What it says on stdout."""
    return ended(publish(tree, *options), 0)


def tree_files(tree: Path) -> dict[str, bytes]:
    """The files of a tree, as a branch has them."""
    files = (path for path in tree.rglob("*") if path.is_file())
    return {f"build/{path.relative_to(tree)}": path.read_bytes() for path in files}


def there(variant: str, *, unique: str = "1a2b3c4", version: int = 1) -> dict[str, bytes]:
    """What somebody else has published: the metadata of a variant, by default of the sources of
    `make_tree`.
    """
    backend = parse_variant_name(variant).backend
    build = build_of(version=version, framework="[torch-noarch]")
    made = metadata_for(build, backend, unique, variant=variant)
    return {f"build/{variant}/metadata.json": encode(made)}


def below(hub: FakeHub, branch: str = "v1") -> set[str]:
    return {path.split("/")[1] for path in hub[REPO].files(branch) if path.startswith("build/")}


# --- what lands ---


@pytest.mark.rule("KCI811", triggers=False)
def test_a_tree_is_one_commit_on_the_branch_of_its_version(hub: FakeHub, tree: Path) -> None:
    said = published(tree)
    files = hub[REPO].files("v1")
    builds = {path: data for path, data in files.items() if path.startswith("build/")}
    assert builds == tree_files(tree)
    assert len(hub.asked(r"POST .*/commit/v1")) == 1
    assert hub[REPO].branches["main"] != hub[REPO].branches["v1"]
    assert "acme/gated-norm@v1: published at " in said
    assert hub[REPO].messages[hub[REPO].branches["v1"]] == "gated-norm version 1: 2 variants (kci)"
    hub.log.clear()
    assert "unchanged at " in published(tree)
    assert hub.asked("^(POST|PUT) ") == [], "the same again uploads nothing"


@pytest.mark.usefixtures("anonymous")
def test_a_dry_run_needs_no_token_and_writes_nothing(hub: FakeHub, tree: Path) -> None:
    said = published(tree, "--dry-run", "-v")
    assert "would publish" in said
    assert "added: build/torch-cpu/data.bin" in said
    assert hub.asked("^(POST|PUT) ") == []
    assert hub[REPO].branches.keys() == {"main"}


def test_binaries_go_before_the_card_or_both_in_one_commit(hub: FakeHub, tree: Path) -> None:
    (tree / "CARD.md").write_text("---\nlicense: mit\n---\n# gated-norm\n")
    published(tree)
    assert hub[REPO].files("main")["README.md"] == (tree / "CARD.md").read_bytes()
    assert "README.md" not in hub[REPO].files("v1")
    hub[REPO].write("main", {}, "empty")
    published(tree, "--branch", "main")
    assert {"README.md", "build/kci-manifest.json"} <= hub[REPO].files("main").keys()
    commits = [path.rsplit("/", 1)[1] for path in hub.asked(r"POST .*/commit/")]
    assert commits == ["v1", "main", "main"]


def test_a_kernel_without_a_card_gets_a_plain_page_unless_there_is_another(
    hub: FakeHub, tmp_path: Path
) -> None:
    def page() -> str:
        return hub[REPO].files("main")["README.md"].decode()

    told = "gated-norm has no CARD.md: acme/gated-norm gets a plain front page, unless it has one"
    ended(publish(make_tree(tmp_path, ("torch-cpu",))), 0, told)
    assert 'get_kernel("acme/gated-norm", version=1, backend="cpu")\n' in page()
    assert "\nLicense: MIT\n\n## Variants\n\n- `torch-cpu`\n\n" in page()
    tree = make_tree(tmp_path, ("torch-cuda",), planned=("torch-cpu", "torch-cuda"))
    replaced = "replaced: README.md, the front page"
    assert replaced in publish(tree).stdout, "its own it keeps up to date"
    assert "version=1)\n" in page()
    hub[REPO].add("main", {"README.md": b"# by hand\n"})
    second = make_tree(tmp_path / "v2", version=2)
    published(second)
    assert page() == "# by hand\n"
    (second / "CARD.md").write_text("# a card\n")
    assert replaced in publish(second).stdout
    published(second, "--branch", "main")
    assert page() == "# a card\n"


def test_a_card_that_the_hub_refuses_is_refused_before_anything_is_written(
    hub: FakeHub, tree: Path
) -> None:
    (tree / "CARD.md").write_text("---\nlicense: of my own\n---\n# gated-norm\n")
    hub.page_errors.append('"license" must be one of many')
    told = 'would refuse the front page: "license" must be one of many'
    ended(publish(tree, "--create-repo"), 1, told)
    assert hub.asked("^(POST|PUT) ") == ["POST /api/repos/create", "POST /api/validate-yaml"]
    assert hub[REPO].branches.keys() == {"main"}
    hub.page_errors.clear()
    hub.fail("validate-yaml", 503)
    published(tree)


def test_what_others_have_put_on_the_branch_stays_and_is_named(
    hub: FakeHub, tmp_path: Path
) -> None:
    foreign = {**there("torch-rocm"), "notes.txt": b"n", "benchmarks/benchmark_all.py": b"pass"}
    hub[REPO].add("v1", foreign)
    said = published(make_tree(tmp_path))
    assert foreign.items() <= hub[REPO].files("v1").items()
    assert "kept, not in the tree: torch-rocm" in said


def test_a_new_branch_does_not_inherit_the_builds_of_the_main_one(
    hub: FakeHub, tmp_path: Path
) -> None:
    main = {"README.md": b"# hello", "build/torch-rocm/metadata.json": b"{}"}
    main |= {"build/torch-cpu/old.py": b"1", "build/a": b"1"}
    hub[REPO].add("main", main)
    tree = make_tree(tmp_path, version=2)
    said = published(tree)
    assert "removed: torch-rocm" in said
    assert below(hub, "v2") == {path.name for path in tree.iterdir()}
    assert hub[REPO].files("v2")["README.md"] == b"# hello"
    assert main.items() <= hub[REPO].files("main").items()


# --- pruning ---


def kernel_dir(tmp_path: Path, extra: str = "") -> Path:
    backends = ("cpu", "cuda", "xpu")
    place = write_noarch(tmp_path / "gated-norm", "gated-norm", backends, extra)
    (place / "benchmarks").mkdir()
    (place / "benchmarks" / "benchmark.py").write_text("pass\n")
    return place


def test_pruning_removes_what_the_kernel_should_no_longer_have(
    hub: FakeHub, tmp_path: Path
) -> None:
    kernel = kernel_dir(tmp_path).rename(tmp_path / "src")
    (kernel / "benchmarks").rename(tmp_path / "benchmarks")
    (tmp_path / ".git").mkdir()
    (tmp_path / "kci.toml").write_text("[publish]\nprune = true\n")
    hub[REPO].add("v1", {**there("torch-rocm"), **there("torch-xpu")})
    said = published(make_tree(tmp_path), "--kernel", kernel)
    # xpu is one of the kernel's backends: it should be there, whatever this tree has.
    assert {"torch-cpu", "torch-cuda", "torch-xpu"} <= below(hub)
    assert "torch-rocm" not in below(hub)
    assert "removed: torch-rocm" in said
    assert "kept, not in the tree: torch-xpu" in said
    assert hub[REPO].files("v1")["benchmarks/benchmark.py"] == b"pass\n"


def test_pruning_needs_the_kernel(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"mine/kci.toml": "[publish]\nprune = true\n", "mine/.git/HEAD": ""}
    monkeypatch.chdir(write_tree(tmp_path, files) / "mine")
    done = publish(make_tree(tmp_path / "fetched"))
    ended(done, 2, "removing variants needs to know which ones the kernel should have")


def test_the_front_page_is_the_kernels_card_of_today(hub: FakeHub, tmp_path: Path) -> None:
    """No variant is built again for a change of CARD.md, so the tree can be older than it."""
    kernel = kernel_dir(tmp_path, f'hub.repo-id = "{REPO}"\n')
    (kernel / "CARD.md").write_text("# {{ repo_id }} is new")
    tree = make_tree(tmp_path)
    hub.page_errors.append("no page")
    told = f"correct {kernel / 'CARD.md'}; nothing was published"
    ended(publish(tree, "--kernel", kernel), 1, told)
    hub.page_errors.clear()
    listed, sums = tree / "kci-manifest.json", tree / "SHA256SUMS"
    for card, expected in (
        (hashlib.sha256(b"# old\n").hexdigest(), f"# {REPO} is new"),
        (None, "# old\n"),  # what was written by hand stays
    ):
        (tree / "CARD.md").write_bytes(b"# old\n")
        manifest = read_manifest(tree)
        assert manifest is not None
        listed.write_bytes(encode_manifest(msgspec.structs.replace(manifest, card=card)))
        hashed = decode_sums(sums.read_bytes()) | {"kci-manifest.json": file_hash(listed)}
        sums.write_bytes(encode_sums(hashed))
        published(tree, "--kernel", kernel)
        assert hub[REPO].files("main")["README.md"].decode() == expected


# --- where to ---


@pytest.mark.parametrize(
    ("general", "settings", "expected"),
    [
        (f'hub.repo-id = "{REPO}"\n', "", "v1"),
        ("", '[publish]\nrepo-prefix = "acme"\nbranch = "next-v{version}"\n', "next-v1"),
        (f'hub.repo-id = "{REPO}"\nhub.branch = "b"\n', '[publish]\nbranch = "y"', "b"),
    ],
)
def test_the_place_is_what_build_toml_says_and_else_kci_toml(
    hub: FakeHub, tmp_path: Path, general: str, settings: str, expected: str
) -> None:
    kernel = kernel_dir(tmp_path, general)
    (tmp_path / ".git").mkdir()
    (tmp_path / "kci.toml").write_text(settings)
    make_tree(tmp_path, into=kernel / "build")
    ended(kci("publish", kernel), 0)
    assert hub[REPO].branches.keys() == {"main", expected}


def test_without_a_place_it_is_refused(hub: FakeHub, here: Path) -> None:
    (here / "kci.toml").write_text('[publish]\nrepo-prefix = "acme"\n')  # may come with a tree
    ended(kci("publish", make_tree(here)), 2, "[general.hub]")


@pytest.mark.parametrize(
    "option",
    [
        *(f"--repo-id={name}" for name in ("gated-norm", "a/b/c", "../x", "a/b?c")),
        *(f"--branch={name}" for name in ("a..b", "{version", "-x", "a b")),
    ],
)
def test_what_names_no_repository_or_branch_is_refused(
    hub: FakeHub, tree: Path, option: str
) -> None:
    assert publish(tree, option).code == 2
    assert hub.log == []


def test_a_repository_can_be_made(hub: FakeHub, tree: Path) -> None:
    del hub.repositories[REPO]
    ended(publish(tree), 1, "404")
    for _ in range(2):
        published(tree, "--create-repo")


# --- refused ---


def refused(hub: FakeHub, tree: Path, code: int, *words: str) -> None:
    done = publish(tree)
    ended(done, code, *words)
    assert "Traceback" not in done.stderr
    assert hub.asked("^(POST|PUT) ") == []


@pytest.mark.rule("KCI811", triggers=True)
def test_what_is_no_complete_tree_is_refused(hub: FakeHub, tmp_path: Path) -> None:
    lacking = make_tree(tmp_path / "lacking", ("torch-cpu",), planned=("torch-cpu", "torch-cuda"))
    refused(hub, lacking, 1, "KCI811", "lacks torch-cuda")
    refused(hub, make_tree(tmp_path / "unplanned", plan=False), 1, "KCI811", "without a plan")
    make_variant(tmp_path / "loose", "torch-cpu")
    refused(hub, tmp_path / "loose", 1, "KCI811", "kci-manifest.json")


def test_a_tree_that_was_changed_after_merging_is_refused(hub: FakeHub, tree: Path) -> None:
    (tree / "torch-cpu" / "_ops.py").write_text("import os\n")
    refused(hub, tree, 1, "does not meet the requirements", "_ops.py")
    (tree / "build.toml").write_text("")
    failure(FindingsError, r"not a merged tree: it holds 'build\.toml'", read_release, tree)


def test_a_file_that_changes_during_publishing_is_not_published(
    hub: FakeHub, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = read_release(tree).files["build/torch-cpu/data.bin"]
    (tree / "torch-cpu" / "data.bin").write_bytes(b"x")
    failure(FindingsError, "changed while it was published", file.content)
    monkeypatch.setattr(hub_branch, "_SMALL", 0)  # a large file is read by the client itself
    commit, sent = HubKernel(REPO, lambda: TOKEN).commit, ("v1", "", {"data.bin": file}, (), "x")
    failure(FindingsError, "changed while it was published", commit, *sent, propose=False)


def test_a_file_that_changes_after_it_was_verified_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verify_and_change(tree: Path, **options: Any) -> list[Diagnostic]:
        found = verify(tree, **options)
        (tree / "torch-cpu" / "data.bin").write_bytes(b"x")
        return found

    monkeypatch.setattr("kci.publish.branch_plan.verify", verify_and_change)
    said = "torch-cpu changed while it was published"
    failure(FindingsError, said, read_release, make_tree(tmp_path))


# --- who ---


@pytest.mark.parametrize("token", ["hf_SECRET\nsecond line", "hf_SECRET two", "hf_SECR\u00c9T"])
def test_a_token_that_no_header_can_hold_is_refused_at_once(
    hub: FakeHub, tmp_path: Path, token: str
) -> None:
    publishing = ("publish", make_tree(tmp_path), "--repo-id", REPO)
    coverage = ("compat", "coverage", kernel_dir(tmp_path), "--hub", REPO)
    for command in (publishing, (*publishing, "--dry-run"), coverage):
        done = kci(*command, HF_TOKEN=token)
        ended(done, 2, "cannot be sent")
        assert "SECR" not in done.stderr
    assert hub.log == []


@pytest.mark.usefixtures("anonymous")
def test_a_job_proves_who_it_is_and_needs_no_stored_token(hub: FakeHub, tree: Path) -> None:
    hub.trusted[f"identity for {hub.url}"] = f"kernels/{REPO}"
    # As GitHub gives it: the URL has a query already.
    place = f"{hub.url}/identity?api-version=2.0"
    asked = {"ACTIONS_ID_TOKEN_REQUEST_URL": place, "GITHUB_ACTIONS": "true"}
    ended(publish(tree, **asked, ACTIONS_ID_TOKEN_REQUEST_TOKEN="request-token"), 0)
    assert "build/kci-manifest.json" in hub[REPO].files("v1")


@pytest.mark.usefixtures("anonymous")
def test_who_has_logged_in_needs_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_stored")
    assert (reader_access()(), publisher_access(REPO)()) == ("hf_stored", "hf_stored")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert reader_access()() is False
    failure(MissingToolError, "there is no token", publisher_access, REPO)


@pytest.mark.usefixtures("anonymous")
def test_no_token_or_an_identity_for_another_repository(hub: FakeHub, tree: Path) -> None:
    refused(hub, tree, 3, "no token", "HF_TOKEN")
    hub.trusted["gitlab"] = "kernels/acme/other"
    ended(publish(tree, HF_OIDC_ID_TOKEN="gitlab"), 1, "trusted publisher")
    assert hub[REPO].branches.keys() == {"main"}


# --- what goes wrong on the way ---


def meanwhile(hub: FakeHub, files: dict[str, bytes], message: str = "theirs") -> None:
    """Somebody else commits this between our look and our commit."""
    hub.once("POST .*/commit/", lambda: hub[REPO].add("v1", files, message) and None)


def noted(_item: object) -> None:
    """By nobody."""


def commit_goal(
    tree: Path, wait: Callable[[float], None] = noted, log: Callable[[str], None] = noted
) -> PublishedBranch:
    """Publish; it waits as far as it can tell."""
    publisher = Publisher(HubKernel(REPO, lambda: TOKEN), REPO, log=log, wait=wait)
    return publisher.publish(read_release(tree), "v1")[0]


@pytest.mark.parametrize(("landed", "status", "headers", "expected"), [
    *((True, status, {}, 2.0) for status in (500, 502, 504, None)),
    *((False, status, {}, 2.0) for status in (500, None, 408, 409)),
    (False, 429, {"Retry_After": "7"}, 7.0), (False, 503, {"Retry_After": "300"}, 300.0),
    (False, 429, {"RateLimit": '"api";r=0;t=31'}, 31.0),
    (False, 429, {"Retry_After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
])  # fmt: skip
def test_a_commit_without_a_reply_is_found_or_made_again(
    hub: FakeHub, tree: Path, landed: bool, status: int | None, headers: dict[str, str],
    expected: float,
) -> None:  # fmt: skip
    hub.fail("POST .*/commit/", status, after=landed, **headers)
    waits: list[float] = []
    done = commit_goal(tree, waits.append)
    assert (done.state, done.commit) == (PublishState.PUBLISHED, hub[REPO].branches["v1"])
    assert (bool(done.changes.added), waits) == (True, [expected])
    asked = [len(hub.asked(what)) for what in ("PUT /lfs/", "POST .*/commit/v1")]
    assert asked == [2, 1 if landed else 2]


def test_a_hub_that_never_takes_it_is_given_up(hub: FakeHub, tree: Path) -> None:
    hub.fail("POST .*/commit/", 500, times=100)
    waits: list[float] = []
    failure(FindingsError, f"{ATTEMPTS} attempts", commit_goal, tree, waits.append)
    assert waits == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def library_error(name: str, *kinds: str) -> type[Exception]:
    """An error as the client's HTTP library, whose name changes, has it."""
    kind: type[Exception] = Exception
    for each in (*reversed(kinds), name):
        kind = type(each, (kind,), {})
    return kind


@pytest.mark.parametrize(("error", "lost"), [
    (library_error("ConnectError", "NetworkError")("All connection attempts failed"), True),
    (library_error("ReadTimeout", "TimeoutException")("timed out"), True),
    (library_error("RemoteProtocolError", "TransportError")("Server disconnected"), True),
    (ConnectionResetError("reset by peer"), True),
    (RuntimeError("Data processing error: CAS service error"), True),
    (OfflineModeIsEnabled("offline mode is enabled"), False),
    (library_error("UnsupportedProtocol", "TransportError")("missing an 'http://' part"), False),
    (library_error("ProxyError", "TransportError")("407 Proxy Authentication Required"), False),
    (library_error("ConnectError", "NetworkError")("[SSL: CERTIFICATE_VERIFY_FAILED] own"), False),
    (ImportError("Using SOCKS proxy, but the 'socksio' package is not installed"), False),
    (ValueError("Unknown scheme for proxy URL"), False),
    (TypeError("a fault of the client"), False),
])  # fmt: skip
def test_only_a_lost_connection_is_tried_again(
    hub: FakeHub, tree: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, lost: bool
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(HfApi, "list_repo_refs", failing)
    monkeypatch.setenv("HTTPS_PROXY", "socks5://bob:s3cret@127.0.0.1:1")
    waits: list[float] = []
    caught = failure(FindingsError, "", commit_goal, tree, waits.append)
    assert len(waits) == (ATTEMPTS - 1 if lost else 0)
    assert str(error)[:20] in caught.message
    assert ("HTTPS_PROXY" in caught.hint) is not lost


@pytest.mark.parametrize(("status", "headers", "seconds"), [
    (429, {"Retry_After": "3600"}, "3600"),
    (429, {"Retry_After": "99999"}, "99999"),
    (503, {"Retry_After": "301"}, "301"),
    (429, {"RateLimit": '"api";r=0;t=1800'}, "1800"),
    (429, {"Retry_After": "Wed, 21 Oct 2099 07:28:00 GMT"}, r"\d{9,}"),
])  # fmt: skip
def test_a_hub_that_asks_for_a_long_time_is_asked_by_the_next_run(
    hub: FakeHub, tree: Path, status: int, headers: dict[str, str], seconds: str
) -> None:
    hub.fail("POST .*/commit/", status, times=100, **headers)
    asks = f"asks for a pause of {seconds} seconds: {status}"
    told = failure(FindingsError, asks, commit_goal, tree)
    later = r"run the same command again after 20\d\d-\d\d-\d\d \d\d:\d\d UTC"
    assert re.match(later, told.hint)
    assert len(hub.asked("POST .*/commit/")) == 1


def test_another_publishers_variants_are_kept(hub: FakeHub, tree: Path) -> None:
    """The parent is stale, and theirs stay."""
    meanwhile(hub, there("torch-rocm"))
    log: list[str] = []
    done = commit_goal(tree, log=log.append)
    kept = ("torch-rocm",)
    assert (done.state, done.changes.kept_variants) == (PublishState.PUBLISHED, kept)
    assert {"torch-rocm", "torch-cpu", "torch-cuda"} <= below(hub)
    assert any("412" in line for line in log)


@pytest.mark.rule("KCI812", triggers=True)
def test_another_publisher_of_the_same_variants_is_not_overwritten(
    hub: FakeHub, tree: Path
) -> None:
    meanwhile(hub, {"build/torch-cpu/_ops.py": b"theirs"})
    only(refusal(commit_goal, tree), "KCI812")
    assert hub[REPO].files("v1")["build/torch-cpu/_ops.py"] == b"theirs"


@pytest.mark.rule("KCI812", triggers=False)
def test_another_publisher_of_the_very_same_tree_is_no_conflict(hub: FakeHub, tree: Path) -> None:
    meanwhile(hub, tree_files(tree), "twin")
    assert commit_goal(tree).state is PublishState.PUBLISHED
    assert hub[REPO].messages[hub[REPO].branches["v1"]] == "twin"


def test_what_the_repository_ignores_is_not_called_published(hub: FakeHub, tree: Path) -> None:
    hub[REPO].ignored = (".bin",)
    failure(FindingsError, r"data\.bin differs", commit_goal, tree)


def test_a_variants_directory_is_replaced_as_a_whole(hub: FakeHub, tmp_path: Path) -> None:
    published(tree := make_tree(tmp_path / "1"))
    old, signature = "build/torch-cpu/old.so", "build/torch-cpu/metadata.json.sigstore"
    hub[REPO].add("v1", {old: b"old", signature: b"signed"})
    assert f"  deleted: {old}\n" in published(tree)
    assert old not in hub[REPO].files("v1")
    assert signature in hub[REPO].files("v1"), "what it signs is the same file still"
    published(make_tree(tmp_path / "2", unique="9999999"))
    assert signature not in hub[REPO].files("v1")


def test_another_kernels_tree_is_refused(hub: FakeHub, tmp_path: Path) -> None:
    kernel = kernel_dir(tmp_path)
    file = kernel / "build.toml"
    file.write_text(file.read_text().replace("version = 1", "version = 2"))
    ended(publish(make_tree(tmp_path), "--kernel", kernel), 2, "version 2")


def test_what_the_hub_does_not_allow_or_answer_is_said(hub: FakeHub, tree: Path) -> None:
    done = publish(tree, HF_TOKEN="hf_wrong")
    ended(done, 1, "the token is not valid")
    assert "hf_wrong" not in done.stderr
    hub.fail("POST .*/branch/", 403)
    ended(publish(tree), 1, "approved")
    hub.fail("GET", None, times=100)
    ended(publish(tree, "--dry-run"), 1, f"{REPO} cannot be read: no answer")  # asked once


def test_a_branch_that_is_made_at_the_same_time_is_shared(hub: FakeHub, tree: Path) -> None:
    theirs = there("torch-rocm")
    hub.once("POST .*/branch/v1", lambda: hub[REPO].write("v1", theirs, "theirs") and None)
    done = commit_goal(tree)
    assert done.changes.kept_variants == ("torch-rocm",)
    assert {"torch-rocm", "torch-cpu"} <= below(hub)


def test_an_upload_that_was_killed_is_resumed(hub: FakeHub, tmp_path: Path) -> None:
    """The process dies with one of three binaries uploaded: nothing shows, and the next run uploads
    the other two.
    """
    names = ("torch-cpu", "torch-cuda", "torch-xpu")
    tree = make_tree(tmp_path, names)
    second, dead = threading.Event(), threading.Event()
    puts: list[str] = []

    def hold(method: str, path: str) -> None:
        if method == "PUT":
            puts.append(path)
            if len(puts) > 1:
                second.set()
                dead.wait()
                raise Fault(None)

    hub.hooks.append(hold)
    # One upload at a time, so that it is known which have been answered.
    starter = "import huggingface_hub.hf_api as a, functools; f = a.HfApi.create_commit\n"
    starter += "a.HfApi.create_commit = functools.partialmethod(f, num_threads=1)\n"
    starter += "import sys; from kci.cli import main; main(sys.argv[1:])"
    environment = {**os.environ, **hub_environment(hub, tmp_path / "home"), "HF_TOKEN": TOKEN}
    command = [sys.executable, "-c", starter, "publish", str(tree), "--repo-id", REPO]
    silent = subprocess.DEVNULL
    running = subprocess.Popen(command, env=environment, stdout=silent, stderr=silent)
    try:
        assert second.wait(60), "it never came to the second binary"
        running.send_signal(signal.SIGKILL)
        running.wait()
    finally:
        running.kill()
        dead.set()
    assert "build/kci-manifest.json" not in hub[REPO].files("v1")
    hub.hooks.clear()
    assert len(hub[REPO].objects) == 1
    hub.log.clear()
    done = commit_goal(tree)
    assert done.state is PublishState.PUBLISHED
    assert len(hub.asked("PUT /lfs/")) == 2
    assert set(names) <= below(hub)


def test_two_runs_at_once_leave_one_whole_tree(hub: FakeHub, tree: Path) -> None:
    """Both look, then both commit: one is refused by the parent, sees the same tree, and is
    content.
    """
    barrier = threading.Barrier(2)
    meet = [2]

    def together(method: str, path: str) -> None:
        if "/commit/" in path and meet[0]:
            meet[0] -= 1
            barrier.wait(60)

    hub.hooks.append(together)
    with ThreadPoolExecutor() as pool:
        found = [*pool.map(commit_goal, [tree, tree])]
    assert [item.state for item in found] == [PublishState.PUBLISHED] * 2
    assert len({item.commit for item in found}) == 1
    assert sum(message.startswith("gated-norm") for message in hub[REPO].messages.values()) == 1
