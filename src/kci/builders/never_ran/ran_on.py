"""What kci has commands for that never ran, and the records of those who ran them: data, with a date and a source."""

import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.files.dated_data import Dated, shipped
from kci.matrix.names import Kind, VariantName
from kci.matrix.variants import Variant

HOW = "if you ran them, open an issue"


class RanOn(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """A record that somebody has sent, and that was held against the kernel."""

    kind: str
    kernel: str
    variant: str
    commands: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    """The hash of the lines that ran; see `never_ran_digest`."""
    device: str
    torch: str
    date: datetime.date
    record: str
    """Where the record lies."""


class NeverRan(Dated, frozen=True):
    """The data file, as it is."""

    kinds: dict[str, str]
    """What people call them, by backend or system."""
    ran: tuple[RanOn, ...] = ()

    def kind_of(self, variant: Variant | VariantName) -> str:
        """The kind of a variant that kci has commands for and has not built; empty for every other variant."""
        if variant.kind is Kind.NOARCH or variant.system is None:
            return ""
        kind = variant.backend if variant.backend in self.kinds else variant.system.partition("-")[2]
        return kind if kind in self.kinds else ""


never_ran = shipped("builders/never_ran/ran_on.toml", NeverRan)
"""The data that is shipped with kci."""


def heading(variant: Variant, commands: str) -> list[str]:
    """The lines above commands that never ran, or that somebody else ran; none above others.

    `commands` is their hash.
    """
    data = never_ran()
    kind = data.kind_of(variant)
    found = [item for item in data.ran if item.kind == kind]
    if not kind:
        return []
    if same := next((item for item in found if item.commands == commands), None):
        return [f"# ran on {same.device} with torch {same.torch}, {same.date}: {same.record}"]
    others = f"; others of the kind ran for {found[-1].kernel} on {found[-1].device}, {found[-1].date}" if found else ""
    return [f"# NEVER RAN: kci's commands for {data.kinds[kind]}{others} (as of {data.as_of}); {HOW}"]


def never_ran_text() -> list[str]:
    """What never ran, a line for each kind, for people."""
    data = never_ran()
    ran = {item.kind: f"ran for {item.kernel} on {item.device}, {item.date}" for item in data.ran}
    return [
        f"{name}: {ran.get(kind, f'no record of any that ran (as of {data.as_of})')}"
        for kind, name in data.kinds.items()
    ]
