"""What holds for every kernel and every catalog, whatever they say."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from conftest import kernel, many, torch_kernel
from kci.config.reader import Kernel
from kci.config.values import SYSTEMS, Backend, Tier, Version, text_of
from kci.matrix.catalog.loading import editions, load_catalog, outside_range
from kci.matrix.catalog.rows import Catalog, Row
from kci.matrix.selection import select
from kci.matrix.variants import Kind, parse_variant_name

EVERY_ROW = [row for name in editions() for row in load_catalog(name).rows]
KNOWN = {(str(row.backend), row.compute) for row in EVERY_ROW if row.compute is not None}

BACKENDS = st.lists(st.sampled_from(["cpu", "cuda", "metal", "rocm", "tpu", "xpu"]), min_size=1, unique=True)
STABLE = st.one_of(
    st.just(""),
    st.just('stable-abi = "2.11"'),
    st.sampled_from(["cpu", "cuda", "rocm"]).map(lambda backend: f'stable-abi = {{ {backend} = "2.10" }}'),
)
TORCHES = [Version.parse(text) for text in ("2.9", "2.10", "2.11", "2.12", "2.13", "2.14")]
CUDAS = [Version.parse(text) for text in ("12.4", "12.6", "12.8", "13.0", "13.2", "13.4")]


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    """A kernel of any framework, with or without bounds, stable ABI and components."""
    backends = draw(BACKENDS)
    framework = draw(st.sampled_from(["torch", "torch-noarch", "tvm-ffi"]))
    if framework != "torch":
        declared = ", ".join(f'"{backend}"' for backend in backends)
        table = "[tvm-ffi]\nsrc = []" if framework == "tvm-ffi" else "[torch-noarch]"
        head = '[general]\nname = "some-kernel"\nversion = 1\nedition = 5\nlicense = "MIT"'
        return kernel(f"{head}\nbackends = [{declared}]\n{table}")
    return bounded(backends, draw(STABLE), draw(bounds(TORCHES)), draw(bounds(CUDAS)))


def bounds(versions: list[Version]) -> st.SearchStrategy[tuple[Version, Version]]:
    """A lower and an upper bound, the right way round."""
    return st.tuples(st.sampled_from(versions), st.sampled_from(versions)).map(lambda pair: (min(pair), max(pair)))


def bounded(backends: list[str], stable: str, torch: tuple[Version, Version], cuda: tuple[Version, Version]) -> Kernel:
    """A `[torch]` kernel with bounds. The TPU has no components."""
    compiled = [backend for backend in backends if backend != "tpu"]
    parts = "".join(
        f'[kernel.{backend}_part]\nbackend = "{backend}"\ndepends = []\nsrc = ["a.cu"]\n' for backend in compiled
    )
    return torch_kernel(
        backends,
        general=f'[general.cuda]\nminver = "{cuda[0]}"\nmaxver = "{cuda[1]}"',
        torch=f'{stable}\nminver = "{torch[0]}"\nmaxver = "{torch[1]}"',
        components=parts or "[kernel]\n",
    )


@st.composite
def rows(draw: st.DrawFn) -> Row:
    """A row that may or may not make sense next to the others."""
    backend = Backend(draw(st.sampled_from(["cpu", "cuda", "metal", "rocm", "xpu"])))
    computes = {
        "cuda": CUDAS,
        "rocm": [Version.parse("7.1"), Version.parse("7.14")],
        "xpu": [Version.parse("2026.0.0")],
    }
    compute = draw(st.sampled_from(computes[backend])) if backend in computes else None
    tvm = draw(st.sampled_from([None, Version.parse("0.1")]))
    system = draw(st.sampled_from(SYSTEMS))
    base = EVERY_ROW[0]
    return Row(draw(st.sampled_from(TORCHES)), backend, compute, system, True, tvm, "x", base.place, base.document)


CATALOGS = st.one_of(
    st.sampled_from([load_catalog(name) for name in editions()]),
    st.lists(rows(), max_size=12).map(lambda made: replace(load_catalog(), rows=tuple(made), neighbors=())),
)


@settings(max_examples=many(300))
@given(kernels(), CATALOGS, st.sets(st.integers(0, 30)))
def test_every_candidate_is_kept_or_dropped_once_with_a_place(
    made: Kernel, catalog: Catalog, on_demand: set[int]
) -> None:
    rows = (replace(row, bundled=False) if index in on_demand else row for index, row in enumerate(catalog.rows))
    catalog = replace(catalog, rows=tuple(rows))
    own = {id(row) for row in catalog.rows}
    beyond = [row for row in outside_range(catalog)[0] if id(row) not in own]
    for tier in Tier:
        found = select(made, catalog, tier, explain=True)
        candidates = [*catalog.rows, *(beyond if tier in (Tier.COMPAT, Tier.ALL) else ())]
        kept = [
            (variant.system, variant.backend, text_of(variant.torch), text_of(variant.compute) or None)
            for variant in found.variants
        ]
        dropped = [(item.system, item.backend, item.torch, item.compute) for item in found.dropped if item.system]
        wanted = [
            (row.system, row.backend, row.torch.text, row.compute.text if row.compute else None) for row in candidates
        ]
        assert Counter([*kept, *dropped]) == Counter(wanted), tier
        assert len(found.kept) == len(found.variants)
        assert all(item.path and item.line for item in (*found.dropped, *found.kept))


@settings(max_examples=many(80))
@given(kernels(), CATALOGS)
def test_names_parse_back_to_what_made_them(made: Kernel, catalog: Catalog) -> None:
    known = KNOWN | {(str(row.backend), row.compute) for row in catalog.rows if row.compute is not None}
    for variant in select(made, catalog, Tier.ALL).variants:
        parsed = parse_variant_name(variant.name, known)
        assert (parsed.kind, parsed.backend) == (variant.kind, variant.backend)
        if variant.kind is Kind.NOARCH:
            continue
        made_with = {Kind.FULL: variant.torch, Kind.STABLE_ABI: variant.stable_abi, Kind.TVM_FFI: variant.tvm_ffi}
        assert parsed.system == variant.system
        assert parsed.framework_version == text_of(made_with[variant.kind])
        if variant.compute is not None:
            assert parsed.compute_version == variant.compute.minor_text
