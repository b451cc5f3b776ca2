"""The objects of one build: those that are there already, and those that it makes, kept as each compiler ends.

ninja orders what has to run and is no judge of objects: a step whose object was found is none of its steps. It still
links, and so its module goes whenever other objects were found than those that it was made of.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from kci.builders.files_now import OWN, FilesNow, InTheWay
from kci.builders.ninjafile import Step
from kci.builders.object_compilers import ObjectCompilers
from kci.builders.object_packs import PackedObject
from kci.builders.object_store import (
    ObjectRecord,
    ObjectStore,
    Reads,
    asked_name,
    file_digest,
    header_list,
    object_name,
)
from kci.builders.read_files import dependencies
from kci.builders.recipe import Recipe
from kci.builders.units import Language
from kci.builders.visible_files import VisibleFiles
from kci.inputs.stat_cache import StatCache
from kci.processes.memory_gate import Need
from kci.processes.process import Log
from kci.processes.running_commands import EndedCommand
from kci.toolchains.launcher import ObjectUse

_LINKED = "linked"
"""A file of the work directory: the digests of its module, and of all that this is made of."""
_THERE = "0" * 64
_SHARE = 20
"""Looking at files takes at most this part of the time."""


class Objects:
    """The objects of one build."""

    def __init__(
        self,
        recipe: Recipe,
        visible: VisibleFiles,
        stores: Sequence[ObjectStore],
        remembered: StatCache,
        log: Log,
        runs: Sequence[str] = (),
    ) -> None:
        """Note that the build begins.

        Args:
            recipe: the build; everything but objects is in its work directory.
            visible: the kernel's files.
            stores: where objects are looked for; the first takes those that are made. None of them: nothing is found
                or kept.
            remembered: digests of files.
            log: takes a line if objects cannot be kept.
            runs: the CI runs that packed what is in the second store.

        Raises:
            OSError: the work directory cannot be written.
        """
        self.records: dict[str, tuple[ObjectStore, str, ObjectRecord]] = {}
        """By output, what was found or kept: where, its name and its record."""
        self.found: set[str] = set()
        self.lost: dict[str, float] = {}
        """By output, the seconds that those had which still ran when the build was ended."""
        self._work = recipe.work
        self._steps = {step.output: step for step in recipe.steps if step.depfile}
        others = (step.output for step in recipe.steps if not step.depfile)
        self._helpers = [output for output in others if output != recipe.target.module]
        self._guesses = recipe.needs
        self._module = recipe.work / recipe.target.module
        self._stores = stores
        self._runs = tuple(sorted({run for run in runs if run}))
        self._log = log
        self._files = FilesNow(recipe.work, remembered)
        self._compilers = ObjectCompilers(recipe.chain, self._files)
        self._visible = visible
        inputs = visible.inputs
        self._own = {f"{OWN[0]}{inputs.shown(path)}" for path, _ in inputs.of(visible.variant)}
        # What hipcc lists is not known to be all.
        self._may_read = {unit.object: self._own for unit in recipe.sources.units if unit.language is Language.HIP}
        self._links = _as_links(recipe.links)
        self._in_the_way: dict[tuple[str, ...], InTheWay] = {}
        self._reads: dict[str, Iterable[str]] = {}
        self._lists: dict[str, Reads | None] = {}
        self._hold: dict[str, bool] = {}
        self._same: dict[str, bool] = {}
        self._ended: dict[str, EndedCommand] = {}
        self._asked: dict[str, tuple[str, str]] = {}
        self._look_again = 0.0
        self._alone = 0

    def restore(self) -> list[Step]:
        """Put the objects that are there into the work directory.

        Returns:
            the steps of the others, at the end those that were lost before. Whatever lies in their place is gone. So is
            what kci links besides, and the module, where they are not what they were when they were linked.

        Raises:
            OSError: something cannot be removed.
        """
        missing = [step for step in self._steps.values() if not self._restore(step)]
        for step in missing:
            (self._work / step.output).unlink(missing_ok=True)
        wrong = {output for output, _ in self._linked().items() ^ self._digests().items()}
        if not wrong.isdisjoint(self._helpers):
            for output in self._helpers:
                (self._work / output).unlink(missing_ok=True)
        if wrong.difference(self._helpers):
            self._module.unlink(missing_ok=True)
        return sorted(missing, key=self.lost_before)

    def lost_before(self, step: Step) -> float:
        """The seconds that a step had when a build was ended before it was done, here or elsewhere; else 0."""
        asked = asked_name(*self._names(step))
        return max((store.lost(asked) for store in self._stores), default=0.0)

    def cost(self, step: Step) -> tuple[float, int | None]:
        """The seconds and the bytes of memory that a step took when it last ran, here or where its object came from."""
        lost = self.lost_before(step)
        for store in self._stores:
            if record := store.latest(asked_name(*self._names(step))):
                return max(lost, record.seconds or 0.0), record.memory
        return lost, None

    def needs(self) -> dict[str, Need]:
        """What compiling each object is expected to take, by output: what it took last, else the recipe's guess."""
        found = dict(self._guesses)
        for output, step in self._steps.items():
            seconds, memory = self.cost(step)
            guess = found[output]
            found[output] = msgspec.structs.replace(
                guess, memory=memory or guess.memory, seconds=seconds, measured=memory is not None
            )
        return found

    def ended(self, command: EndedCommand) -> None:
        """A compiler has ended and its object is whole; it is kept as soon as its files were seen to be at rest.

        What was lost is noted, so that another build begins with others.
        """
        if command.lost:
            self.lost[command.output] = command.seconds or 0.0
            with suppress(OSError):
                for store in self._stores[:1]:
                    store.add_lost(asked_name(*self._names(self._steps[command.output])), command.seconds or 0.0)
            return
        self._ended[command.output] = command
        self._alone += command.alone
        if time.monotonic() >= self._look_again:
            self.keep()

    def done(self) -> int:
        """How many are there now, found or made."""
        self.keep()
        return len(self._reads)

    def left(self) -> dict[str, float]:
        """By command, what is neither found nor made, with the seconds of `lost_before`."""
        steps = (step for output, step in self._steps.items() if output not in self._reads)
        return {asked_name(*self._names(step)): self.lost_before(step) for step in steps}

    def keep(self) -> None:
        """Keep the objects whose compilers have ended."""
        began = time.monotonic()
        ended, self._ended = self._ended, {}
        read = {output: self._read(self._steps[output]) for output in ended}
        if self._stores:
            changed = self._files.changed(set().union(*read.values()))
            for output, command in ended.items():
                self._keep(self._steps[output], read[output], changed, command)
        now = time.monotonic()
        self._look_again = now + _SHARE * (now - began)

    def complete(self) -> None:
        """All compilers have ended well."""
        for output in self._steps.keys() - self._reads.keys() - self._ended.keys():
            self._ended[output] = EndedCommand(output, None, None)
        self.keep()

    def linked(self) -> None:
        """The module is made, of the objects that are there."""
        text = "".join(f"{digest} {output}\n" for output, digest in self._digests().items())
        (self._work / _LINKED).write_text(text, encoding="utf-8")

    def finish(self, limit: int) -> None:
        """The build ends, however it does: what was used is noted, and the oldest objects go beyond so many bytes."""
        if self._ended:
            self.keep()
        self._files.save()
        for store in self._stores[:1]:
            store.finish(limit)

    def use(self) -> ObjectUse:
        """How many were found."""
        seconds = sum(record.seconds or 0 for output, (_, _, record) in self.records.items() if output in self.found)
        given = any(self.records[output][0] is not self._stores[0] for output in self.found if output in self.records)
        runs = self._runs if given else ()
        return ObjectUse(len(self.found), len(self._steps) - len(self.found), seconds, self._alone, runs)

    def packed(self) -> list[PackedObject]:
        """Those that were found or kept."""
        return [PackedObject(*found) for found in self.records.values()]

    @property
    def wanted(self) -> int:
        """How many there are to be."""
        return len(self._steps)

    def named(self) -> list[str]:
        """The files that compilers read, as they name them: absolute, or relative to the work directory."""
        return sorted({path for reads in self._reads.values() for path in reads})

    def _restore(self, step: Step) -> bool:
        command, compilers = self._names(step)
        for store in self._stores:
            for name, record in store.of(asked_name(command, compilers)):
                headers = self._headers(record.headers)
                if headers is None or self._name_now(step, record, headers) != name:
                    continue
                if store.take(name, record, self._work / step.output):
                    self.records[step.output] = (store, name, record)
                    self.found.add(step.output)
                    self._reads[step.output] = (*record.reads, *headers)
                    return True
        return False

    def _name_now(self, step: Step, record: ObjectRecord, headers: Reads) -> str | None:
        """The name of what the compiler would make now of the files that it read then; None if it would read others."""
        reads = self._files.digests(record.reads)
        if reads != record.reads or not self._holds(record.headers, headers):
            return None
        placed = self._placed(step, reads, headers, record.headers)
        return object_name(*self._names(step), reads, record.headers, placed)

    def _holds(self, name: str, headers: Reads) -> bool:
        if name not in self._hold:
            self._hold[name] = self._files.digests(headers) == headers
        return self._hold[name]

    def _headers(self, name: str) -> Reads | None:
        if name not in self._lists:
            self._lists[name] = next(
                (found for store in self._stores if (found := store.headers(name)) is not None), None
            )
        return self._lists[name]

    def _placed(self, step: Step, reads: Iterable[str], headers: Collection[str], listed: str) -> Reads:
        words = step.command
        directories = self._compilers.directories(words)
        if directories not in self._in_the_way:
            self._in_the_way[directories] = InTheWay(self._files, self._own, directories)
        found = self._in_the_way[directories].of(step.inputs[0], reads, headers, listed)
        found |= self._may_read.get(step.output, set())
        # Of what is not the kernel's it counts that it is there: then one torch is as good as another.
        there = self._files.digests(sorted(found.difference(reads)))
        return {path: digest if path.startswith(OWN) else _THERE for path, digest in there.items()}

    def _names(self, step: Step) -> tuple[str, str]:
        if step.output not in self._asked:
            self._asked[step.output] = self._compilers.named(step.command)
        return self._asked[step.output]

    def _read(self, step: Step) -> set[str]:
        """What a compiler says that it read, by names that are the same on every machine."""
        found = {self._link_name(path) for path in dependencies(self._work / f"{step.output}.d")}
        words = " ".join(step.command)
        found |= {path for path in self._own if posixpath.basename(path) in words}
        found |= {path for own in found if own.startswith(OWN) for path in self._files.assembled(own)}
        found |= self._may_read.get(step.output, set())
        self._reads[step.output] = found
        return found

    def _link_name(self, path: str) -> str:
        if path.startswith("/"):
            for place, name in self._links:
                if path.startswith(place):
                    return f"{name}/{path[len(place) :]}"
        return path

    def _keep(self, step: Step, read: set[str], changed: set[str], ended: EndedCommand) -> None:
        if not read.isdisjoint(changed):
            return
        reads = self._files.digests(sorted(path for path in read if path.startswith(OWN)))
        headers = self._files.digests(read - reads.keys())
        listed, text = header_list(headers)
        placed = self._placed(step, reads, headers, listed)
        made = self._work / step.output
        if self._files.changed(placed) or not all(self._is_same_again(path, reads[path]) for path in reads):
            return
        command, compilers = self._names(step)
        try:
            record = ObjectRecord(
                command=command, compilers=compilers, reads=reads, headers=listed, placed=placed,
                digest=file_digest(made), size=made.stat().st_size, source=step.inputs[0],
                seconds=ended.seconds, memory=ended.peak,
            )  # fmt: skip
            self._stores[0].add_list(listed, text)
            name = self._stores[0].add(record, made)
        except OSError as error:
            self._log(f"objects are not kept: {error.strerror or error}")
            self._stores = ()
            return
        self.records[step.output] = (self._stores[0], name, record)

    def _is_same_again(self, path: str, digest: str) -> bool:
        """Whether a file is what it was when the build began, also where a folder was renamed, and is so tomorrow."""
        if path not in self._same:
            before = self._visible.before(os.path.realpath(self._work / path)) or digest
            text = self._files.text(path)
            timed = b"__TIMESTAMP__" in text or (
                (b"__DATE__" in text or b"__TIME__" in text) and "SOURCE_DATE_EPOCH" not in os.environ
            )
            self._same[path] = before == digest and not timed
        return self._same[path]

    def _digests(self) -> dict[str, str]:
        return {output: self._digest(output) for output in sorted([*self._steps, *self._helpers, self._module.name])}

    def _linked(self) -> dict[str, str]:
        try:
            lines = (self._work / _LINKED).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            return {}
        return {output: digest for digest, _, output in (line.partition(" ") for line in lines)}

    def _digest(self, output: str) -> str:
        if output in self.records:
            return self.records[output][2].digest
        try:
            return file_digest(self._work / output)
        except FileNotFoundError:
            return ""


def _as_links(links: Mapping[str, Path]) -> list[tuple[str, str]]:
    """The directories that links of the work directory lead to, with their names, the longest first."""
    found = set()
    for name, target in links.items():
        for place in (str(target), str(target.resolve())):
            if place not in ("/", "/usr"):  # a tool that is a part of the system
                found.add((f"{place.rstrip('/')}/", name))
    return sorted(found, key=lambda item: (-len(item[0]), item))
