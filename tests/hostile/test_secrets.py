"""Nothing secret is printed: what clients say, and addresses, pass one function."""

from __future__ import annotations

import base64
import logging
from pathlib import Path
from urllib.parse import quote

import pytest

from cli.runner import kci
from kci.actions.common import show
from kci.builders.process.run import ProgramResult
from kci.builders.toolchains import downloads
from kci.cli._output import progress_log
from kci.errors import FindingsError, MissingToolError, first_line_of, without_secrets
from kci.publish.hub import hub_client
from kci.run import machine_report
from kci.utils.git import last_line

SECRET = "p@ss/wörd+1"
TOKEN = f"hf_{'A1b2' * 5}"


@pytest.mark.parametrize(
    "text",
    [
        f"no answer: Illegal header value b'Bearer {SECRET}'",
        f"https://bob:{quote(SECRET, safe='')}@index.example/simple/torch/: 404",
        f"https://bob:{quote(SECRET, safe='').lower()}@index.example/simple/torch/: 404",
        f"nonnumeric port: '{SECRET}@index.example'",
        f"https://{SECRET}@index.example/simple",
        f"no way to https://index.example/simple?access_token={quote(SECRET)}",
        f"GET https://files.example/x?X-Amz-Signature={'0a' * 16}{SECRET}&X-Amz-Expires=1",
        f"Authorization: Basic {base64.b64encode(SECRET.encode()).decode()}",
        f"invalid user token: {TOKEN}",
        "remote: ghs_0123456789abcdefghij is not valid",
        "https://ghp_0123456789abcdefghij@github.com/acme/kernels",
        "a second line of the token",
        "a third%41line of it",
    ],
)
def test_what_is_secret_is_left_out(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_TOKEN", f"{SECRET}\nsecond line of the token\nthird%41line\n")
    quoted = quote(SECRET, safe="")
    monkeypatch.setenv("PIP_INDEX_URL", f"https://bob:{quoted}@index.example/simple")
    error = FindingsError(text, hint=text)
    lines = (without_secrets(text), first_line_of(OSError(text)), last_line(text))
    secrets = (SECRET, quote(SECRET), quoted, base64.b64encode(SECRET.encode()).decode(), TOKEN)
    for said in (*lines, error.message, error.hint):
        assert "***" in said
        for secret in (*secrets, "0a0a", "0123456789", "second line", "third%41line"):
            assert secret not in said


def test_what_is_not_secret_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN_PATH", "/home/bob/token")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "enabled")
    monkeypatch.setenv("KEY", "true")
    place = "/home/bob/token: https://index.example/simple?page=2"
    text = f"{place} is enabled: true; hf_xet, git@github.com:acme/hf_kernels"
    assert without_secrets(text) == text


def test_a_secret_is_not_cut_before_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_TOKEN", "x" * 60)
    for said in (first_line_of(OSError("y" * 280 + "x" * 60)), last_line("y" * 280 + "x" * 60)):
        assert "x" not in said


def test_the_password_of_an_index_is_not_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = "https://bob:s3cret@127.0.0.1:9/simple"
    monkeypatch.setenv("PIP_INDEX_URL", index)
    monkeypatch.setenv("KCI_TORCH_INDEX", index.replace("s3cret", "t0rch-key"))
    monkeypatch.setattr(machine_report, "is_reachable", lambda _url: False)
    monkeypatch.chdir(tmp_path)
    report = kci("doctor").stdout
    assert "https://***@127.0.0.1:9/simple" in report
    monkeypatch.setattr(downloads, "_fault", lambda url: OSError(f"cannot ask {url}"))
    failed = ProgramResult(1, f"Looking in indexes: {index}")
    monkeypatch.setattr(downloads, "run_uv", lambda *_: failed)
    command = ["pip", "install", "--index-url", index]
    with pytest.raises(MissingToolError) as caught:
        downloads.install(command, "torch", lambda _line: None, tmp_path)
    assert "the package index https://***@127.0.0.1:9/simple cannot be reached" in str(caught.value)
    for said in (report, str(caught.value), caught.value.hint):
        assert "s3cret" not in said
        assert "t0rch-key" not in said


def test_the_client_s_own_log_has_no_secrets() -> None:
    hub_client(token=False)
    (handler,) = logging.getLogger("huggingface_hub").handlers
    asked = ("while requesting %s", ("https://bob:pw@hub",))
    record = logging.LogRecord("hub", logging.WARNING, "", 0, *asked, None)
    assert handler.filter(record)
    assert record.getMessage() == "while requesting https://***@hub"


def test_progress_has_no_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    for log in (progress_log(), show):
        log("https://bob:pw@index.example cannot be reached")
    said = capsys.readouterr()
    assert (said.out + said.err).count("https://***@index.example") == 2
