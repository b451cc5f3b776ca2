"""Libraries that give functions the versions of an older glibc (docs/builders.md)."""

from __future__ import annotations

from kci.builders.old_glibc import old_libraries


def test_a_version_is_never_older_than_the_cpus_first_glibc() -> None:
    x86 = {library.soname: dict(library.versions) for library in old_libraries("x86_64")}
    arm = {library.soname: dict(library.versions) for library in old_libraries("aarch64")}
    assert "dlsym" in x86["libdl.so.2"]["2.2.5"]
    assert list(arm["libdl.so.2"]) == ["2.17"]
    assert {"dlsym", "dlinfo", "dlmopen"} <= set(arm["libdl.so.2"]["2.17"])
    assert old_libraries("riscv64") == ()


def test_each_version_holds_the_one_before_it() -> None:
    library = next(item for item in old_libraries("x86_64") if item.soname == "libdl.so.2")
    assert library.files()[library.version_script].splitlines()[1:] == [
        "GLIBC_2.2.5 { global: dladdr; dlclose; dlerror; dlopen; dlsym; dlvsym; local: *; };",
        "GLIBC_2.3.3 { global: dladdr1; dlinfo; } GLIBC_2.2.5;",
        "GLIBC_2.3.4 { global: dlmopen; } GLIBC_2.3.3;",
    ]


def test_no_function_is_in_two_of_them() -> None:
    names = [name for library in old_libraries("x86_64") for _, found in library.versions for name in found]
    assert len(names) == len(set(names))
