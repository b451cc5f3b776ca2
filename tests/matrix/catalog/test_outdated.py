"""`kci catalog outdated`: how old the catalog in force is, and whether kci has a newer edition."""

from __future__ import annotations

import io
from datetime import date

import pytest

from cli.runner import kci
from kci.matrix.catalog.loading import freshness, load_catalog


@pytest.mark.parametrize(
    ("edition", "today", "days", "outdated"),
    [
        ("2026-09-17", "2026-10-01", 14, False),
        ("2026-09-17", "2026-11-21", 65, True),
        ("2026-08-20", "2026-09-18", 29, True),
        ("2026-08-20", "2026-09-01", 12, False),
    ],
)
def test_a_catalog_is_outdated_if_it_is_old_or_a_newer_one_is_there(
    edition: str, today: str, days: int, outdated: bool
) -> None:
    found = freshness(load_catalog(edition), date.fromisoformat(today))
    assert (found.days, found.outdated) == (days, outdated)


VERSIONS = (b"2.14.1", b"2.17.0", b"2.18.0rc1")
LISTED = b"".join(
    b'<a href="torch-%s-cp313-cp313-manylinux_2_28_x86_64.whl">' % version for version in VERSIONS
)
NOT_ASKED = "pip's index was not asked"


@pytest.mark.parametrize(
    ("options", "answer", "code", "said"),
    [
        ((), None, 0, ["2.15"]),
        (("--pypi",), LISTED, 1, ["2.15", "2.17"]),
        (("--pypi",), b"<p>", 0, [NOT_ASKED, "2.15"]),
        (("--pypi",), None, 0, [NOT_ASKED, "2.15"]),
    ],
)
def test_a_torch_on_pypi_that_is_not_bundled_is_named(
    options: tuple[str, ...],
    answer: bytes | None,
    code: int,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def opened(url: str, *_: object, **__: object) -> io.BytesIO:
        if answer is None:
            raise OSError(f"no network, and {url} is asked")
        return io.BytesIO(answer)

    monkeypatch.setattr("kci.builders.toolchains.downloads._opened", opened)
    monkeypatch.setattr("kci.matrix.catalog.loading.OUTDATED_DAYS", 10**6)
    done = kci("catalog", "outdated", *options)
    assert done.code == code
    named = [
        line.removeprefix("torch ").partition(" is on")[0] for line in done.stdout.splitlines()[1:]
    ]
    assert [line.partition(":")[0] for line in named] == said
