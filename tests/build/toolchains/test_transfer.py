"""How far a download is, in words."""

from __future__ import annotations

import pytest

from kci.build.toolchains.downloads import SeldomTransfers, Transfer, TransferLine


@pytest.mark.parametrize(
    ("done", "total", "seconds", "line"),
    [
        (6_100_000, 13_200_000, 2.0, "it: 6.1 of 13.2 MB, 3.0 MB/s, 2 s left"),
        (13_200_000, 13_200_000, 4.0, "it: 13.2 of 13.2 MB, 3.3 MB/s"),
        (500_000, 0, 1.0, "it: 0.5 MB, 0.5 MB/s"),
        (1_000_000, 126_000_000, 1.0, "it: 1.0 of 126.0 MB, 1.0 MB/s, 2 min 05 s left"),
        (0, 10, 0.0, "it: 0.0 of 0.0 MB, 0.0 MB/s"),
    ],
)
def test_the_line(done: int, total: int, seconds: float, line: str) -> None:
    assert TransferLine("it", done, total, seconds) == line


def test_it_is_said_now_and_then() -> None:
    times = iter([0.0, 0.1, 0.6, 0.7, 1.3])
    said: list[str] = []
    transfer = Transfer("it", 4_000_000, said.append, lambda: next(times))
    for _ in range(4):
        transfer.heard(1_000_000)
    assert said == ["it: 2.0 of 4.0 MB, 3.3 MB/s, 1 s left", "it: 4.0 of 4.0 MB, 3.1 MB/s"]


def test_where_lines_stay_there_are_few_of_a_download() -> None:
    now = 0.0
    said: list[str] = []
    log = SeldomTransfers(said.append, lambda: now)
    for second in range(25):
        now = float(second)
        log(TransferLine("it", second * 1_000_000, 25_000_000, second))
        if second == 5:
            log("another line")
    log(TransferLine("it", 25_000_000, 25_000_000, 25))
    assert [line.partition(" MB,")[0] for line in said] == [
        "it: 0.0 of 25.0", "another line", "it: 10.0 of 25.0", "it: 20.0 of 25.0", "it: 25.0 of 25.0",
    ]  # fmt: skip
