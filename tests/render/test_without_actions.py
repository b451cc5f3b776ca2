"""Files without an action of kci's: which wheel they run, and what becomes of an action's steps."""

from __future__ import annotations

import hashlib
import http.server
import os
import ssl
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cli.runner import kci
from conftest import read_yaml
from kci.config.settings import Actions
from kci.errors import FindingsError
from kci.render.pins import shipped_pins
from kci.render.without_actions import KciWheel, action_files, chosen_wheel, without_actions
from kci.version import __version__

NAME = f"kci-{__version__}-py3-none-any.whl"
SHA = "ab" * 32


def refused(actions: Actions, root: Path) -> str:
    with pytest.raises(FindingsError) as caught:
        chosen_wheel(actions, root)
    (found,) = caught.value.diagnostics
    assert found.rule == "KCI451"
    return found.message


def written(root: Path, *names: str) -> bytes:
    with zipfile.ZipFile(root / NAME, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return (root / NAME).read_bytes()


@pytest.mark.rule("KCI451", triggers=False)
def test_the_wheel_that_is_run(tmp_path: Path) -> None:
    content = written(tmp_path, "kci/actions/run.sh")
    digest = hashlib.sha256(content).hexdigest()
    assert chosen_wheel(Actions(wheel=NAME), tmp_path) == KciWheel(NAME, digest)
    assert chosen_wheel(Actions(sha256=SHA), tmp_path) == KciWheel(f"kci=={__version__}", SHA)
    there = f"https://example.com/{NAME}"
    assert chosen_wheel(Actions(wheel=there, sha256=SHA), tmp_path) == KciWheel(there, SHA)


@pytest.mark.rule("KCI451", triggers=True)
def test_a_wheel_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    assert "does not say which kci runs" in refused(Actions(), tmp_path)
    assert "another kci" in refused(Actions(wheel="kci-0.0.1-py3-none-any.whl"), tmp_path)
    assert "no digest" in refused(Actions(wheel=f"https://example.com/{NAME}"), tmp_path)
    assert "cannot be read" in refused(Actions(wheel=NAME), tmp_path)
    written(tmp_path, "kci/__init__.py")
    assert "no actions in it" in refused(Actions(wheel=NAME), tmp_path)
    written(tmp_path, "kci/actions/run.sh")
    assert "not the one of `sha256`" in refused(Actions(wheel=NAME, sha256=SHA), tmp_path)
    (tmp_path / NAME).rename(tmp_path / "elsewhere.whl")
    (tmp_path / NAME).symlink_to("elsewhere.whl")
    assert "symbolic link" in refused(Actions(wheel=NAME), tmp_path)


def steps_of(step: str, wheel: KciWheel | None = None) -> list[dict]:
    text = f"jobs:\n  a:\n    permissions:\n      actions: read\n    steps:\n{step}\n"
    made = read_yaml(without_actions(text, wheel or KciWheel("kci==1.0", SHA), shipped_pins()))
    return made["jobs"]["a"]["steps"]


STEP = """\
      - name: Build it
        if: ${{ always() }}
        uses: kci/build@v1 # zizmor: ignore[unpinned-uses]
        with:
          variant: ${{ matrix.a || 'b' }}
          upload: %s
          takes: x{${{ matrix.b }}}-* # a comment
      # what follows
      - run: "true"
"""


def test_what_is_known_when_files_are_rendered_is_decided_then() -> None:
    steps = {step.get("name"): step for step in steps_of(STEP % '"true"')}
    assert steps["Upload"]["if"] == "${{ always() && !cancelled() && steps.kci-build.outputs.artifact-name != '' }}"
    assert "Upload the results" not in steps
    assert "Fetch objects of this run" not in steps, "without the input `objects`"
    build = steps["Build it"]
    assert build["if"] == "${{ always() }}"
    assert build["env"]["KCI_INPUT_VARIANT"] == "${{ matrix.a || 'b' }}"
    assert build["env"]["KCI_INPUT_TAKES"] == "x{${{ matrix.b }}}-*"
    assert "KCI_INPUT_OBJECTS" not in build["env"]
    assert "Upload" not in {step.get("name") for step in steps_of(STEP % '"false"')}
    computed = {step.get("name"): step for step in steps_of(STEP % "${{ !inputs.watch }}")}
    assert "(!inputs.watch) == 'true' && " in computed["Upload"]["if"]


def test_a_mixed_input_becomes_a_call_of_format() -> None:
    step = STEP % '"true"' + '          objects: "o"\n'
    step = step.replace('      # what follows\n      - run: "true"\n', "")
    (fetch,) = [step for step in steps_of(step) if step.get("name") == "Fetch objects of this run"]
    assert fetch["if"].startswith("${{ always() && (format('x{{{0}}}-*', matrix.b) != '' || github.run_attempt")
    assert fetch["with"]["pattern"] == "${{ format('x{{{0}}}-*', matrix.b) || format('{0}-*', 'o') }}"


def test_what_stands_around_a_step_stays() -> None:
    assert steps_of(STEP % '"true"')[-1] == {"run": "true"}


def test_only_a_wheel_of_the_repository_is_checked_out() -> None:
    text = "jobs:\n  a:\n    permissions:\n      actions: read\n    steps:\n" + STEP % '"true"'
    inside = read_yaml(without_actions(text, KciWheel(f"vendor/{NAME}", SHA), shipped_pins()))["jobs"]["a"]
    assert inside["permissions"] == {"actions": "read", "contents": "read"}
    assert inside["steps"][0]["with"] == {
        "path": ".kci-wheel", "persist-credentials": False,
        "sparse-checkout": f"vendor/{NAME}", "sparse-checkout-cone-mode": False,
    }  # fmt: skip
    elsewhere = read_yaml(without_actions(text, KciWheel("kci==1.0", SHA), shipped_pins()))["jobs"]["a"]
    assert elsewhere["permissions"] == {"actions": "read"}


def test_the_output_of_an_action_is_that_of_the_step_that_runs_kci() -> None:
    """Steps keep their id, so whatever reads outputs of a step is right without being changed."""
    for name, text in action_files().items():
        action = read_yaml(text)
        for output, spec in action.get("outputs", {}).items():
            assert spec["value"] == f"${{{{ steps.{name}.outputs.{output} }}}}"


@pytest.mark.rule("KCI450", triggers=True)
def test_actions_that_do_not_exist_yet_are_told_of(tmp_path: Path) -> None:
    add_kernel(tmp_path)
    done = kci("render", "--output", tmp_path, tmp_path)
    assert done.code == 0
    assert "warning[KCI450]: these workflows use kci/build@v1, which does not exist before" in done.stderr
    text = (tmp_path / ".github/workflows/kci.yml").read_text()
    assert text.count("does not exist before the first release of kci") == 1


@pytest.mark.rule("KCI450", triggers=False)
@pytest.mark.parametrize("settings", ['repository = "acme/kci"', 'ref = "main"', f'ref = "{"e" * 40}"'])
def test_actions_that_somebody_names_exist(tmp_path: Path, settings: str) -> None:
    add_kernel(tmp_path)
    (tmp_path / "kci.toml").write_text(f"[actions]\n{settings}\n")
    done = kci("render", "--output", tmp_path, tmp_path)
    assert (done.code, done.stderr) == (0, "")
    assert "does not exist" not in (tmp_path / ".github/workflows/kci.yml").read_text()
    assert kci("render", "--output", tmp_path, "--check", tmp_path).code == 0


def test_the_header_remembers_that_no_action_is_used(tmp_path: Path) -> None:
    add_kernel(tmp_path)
    (tmp_path / "kci.toml").write_text(f'[actions]\nsha256 = "{SHA}"\n')
    file = tmp_path / ".github/workflows/kci.yml"
    for options, used in ((["--without-actions"], False), ([], False), (["--with-actions"], True), ([], True)):
        assert kci("render", "--output", tmp_path, *options, tmp_path).code == 0
        assert ("uses: kci/build" in file.read_text()) is used


def test_what_installs_stands_in_every_file(tmp_path: Path) -> None:
    add_kernel(tmp_path)
    (tmp_path / "kci.toml").write_text('[actions]\ninstall = "npm"\n')
    refused = kci("render", "--output", tmp_path, tmp_path)
    assert "KCI104" in refused.stderr
    assert "one of: pip, uv" in refused.stderr
    (tmp_path / "kci.toml").write_text('[actions]\ninstall = "pip"\n')
    assert kci("render", "--output", tmp_path, tmp_path).code == 0
    files = list((tmp_path / ".github/workflows").iterdir())
    assert len(files) == 2
    assert all(read_yaml(file.read_text())["env"] == {"KCI_INSTALLER": "pip"} for file in files)


def add_kernel(root: Path) -> None:
    package = root / "kernel" / "torch-ext" / "some_kernel"
    package.mkdir(parents=True)
    general = 'name = "some-kernel"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cpu"]\n'
    (root / "kernel" / "build.toml").write_text(f"[general]\n{general}[torch-noarch]\n")
    (package / "__init__.py").write_text("def double(x):\n    return x + x\n")


class HttpsServer(http.server.SimpleHTTPRequestHandler):
    """Gives files of a folder; `/moved` leads to the same name without TLS."""

    def do_GET(self) -> None:
        if self.path.startswith("/moved/"):
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_port}/{NAME}")  # type: ignore[attr-defined]
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def https(tmp_path: Path) -> Iterator[str]:
    """The address of a folder with a wheel; its certificate is `tmp_path / "cert.pem"`."""
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    said = (
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost",
    )
    command = ["openssl", "req", "-x509", *said, "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    (tmp_path / "served").mkdir()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    handler = partial(HttpsServer, directory=str(tmp_path / "served"))
    with http.server.ThreadingHTTPServer(("localhost", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://localhost:{server.server_port}"
        server.shutdown()


@pytest.mark.programs
def test_a_wheel_at_an_https_address_is_fetched_and_held_to_its_digest(tmp_path: Path, https: str) -> None:
    digest = hashlib.sha256(written(tmp_path / "served", "kci/actions/run.sh")).hexdigest()

    def fetched(address: str, sha256: str, *, trusted: bool = True) -> subprocess.CompletedProcess[str]:
        wheel = chosen_wheel(Actions(wheel=f"{address}/{NAME}", sha256=sha256), tmp_path)
        (step,) = [step for step in steps_of(STEP % '"true"', wheel) if step.get("name") == "Unpack kci"]
        env = {"PATH": os.environ["PATH"], "RUNNER_TEMP": str(tmp_path / "temp"), **step["env"]}
        env |= {"CURL_CA_BUNDLE": str(tmp_path / "cert.pem")} if trusted else {}
        script = step["run"].replace("--retry 3", "--retry 0")
        (tmp_path / "temp").mkdir(exist_ok=True)
        return subprocess.run(
            ["bash", "-c", script], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
        )

    there = fetched(https, digest)
    assert there.returncode == 0, there.stderr
    (unpacked,) = (tmp_path / "temp").rglob("kci/actions/run.sh")
    other = fetched(https, SHA)
    assert (other.returncode, "is not the wheel that was rendered for" in other.stdout) == (1, True)
    assert not unpacked.exists(), "what an earlier step has unpacked is not run"
    assert fetched(https, digest, trusted=False).returncode != 0
    assert fetched(f"{https}/moved", digest).returncode != 0, "not without TLS"
    assert fetched(f"{https}/nowhere", digest).returncode != 0
