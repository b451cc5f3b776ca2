"""Pages that list what there is in the world: from a server or a file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from kci.catalog import listings
from kci.catalog.listings import read_listing
from kci.errors import FindingsError


def test_a_page_of_a_server_is_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listings, "fetch", lambda _place: SimpleNamespace(status=200, body=b"a page"))
    assert read_listing("https://example.org/x") == b"a page"


def test_a_server_that_has_no_such_page_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listings, "fetch", lambda _place: SimpleNamespace(status=404, body=b"sorry"))
    with pytest.raises(FindingsError, match=r"^https://example\.org/x: the server says 404"):
        read_listing("https://example.org/x")


def test_a_file_is_found_from_where_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("a page")
    assert read_listing("page.html", tmp_path) == b"a page"
    with pytest.raises(FindingsError, match="No such file"):
        read_listing("other.html", tmp_path)
