# ruff: noqa: E501  - code of other languages, a case a line
"""Operators out of pybind11 modules and registrations: the schema, the wrapper, and what an argument is used for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kci.starter.cpp_code import read_code
from kci.starter.mutation import writes_to
from kci.starter.new_kernel import choose
from kci.starter.operators import with_operators
from kci.starter.registrations import operators_of
from kci.starter.take_over import from_setup_py


def made(code: str, binding: str) -> tuple[str, str]:
    """The registration of one bound function, and why it is left out."""
    text = f"{code}\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{\n{binding}\n}}\n"
    changed, operators, _ = operators_of({"a.cpp": text}, ["a.cpp"], read_code({"a.cpp": text}))
    lines = [line.strip() for line in changed["a.cpp"].splitlines() if "ops.def" in line]
    return "\n".join(lines), "; ".join(item.left for item in operators)


@pytest.mark.parametrize(
    ("code", "binding", "schema"),
    [
        ("at::Tensor f(at::Tensor a, int64_t n) { return a + n; }", 'm.def("f", &f);', "f(Tensor a, int n) -> Tensor"),
        ("namespace a { namespace b { bool f(float x, std::string s); } }", 'm.def("f", a::b::f);', "f(float x, str s) -> bool"),
        ("namespace a::b { int f(); }", 'm.def("f", &a::b::f, "text, (with) { brackets");', "f() -> int"),
        ("void f(c10::optional<at::Tensor>& x);", 'm.def("f", &f);', "f(Tensor(a!)? x) -> ()"),
        ("void f(std::optional<const at::Tensor> &x, std::optional<int> n) { n; }", 'm.def("f", &f);', "f(Tensor? x, int? n) -> ()"),
        ("std::vector<torch::Tensor> f(const std::vector<at::Tensor>& x, std::vector<int> n) { return x; }", 'm.def("f", &f);', "f(Tensor[] x, int[] n) -> Tensor[]"),
        ("std::tuple<at::Tensor, int> f(at::IntArrayRef n);", 'm.def("f", &f);', "f(int[] n) -> (Tensor, int)"),
        ("enum class Mode { A, B };\nvoid f(Mode mode, uint32_t n);", 'm.def("f", &f);', "f(int mode, int n) -> ()"),
        ("void f(int a, float b, bool c);", 'm.def("f", &f, py::arg("x"), py::arg("y") = 1.5f, "z"_a = true);', "f(int x, float y=1.5, bool z=True) -> ()"),
        ("void f(int a, float b);", 'm.def("f", &f, py::arg("x") = 1, py::arg("y"));', "f(int x, float y) -> ()"),
        ("at::Tensor f(c10::optional<at::Generator> g);", 'm.def("f", &f, py::arg("g") = py::none());', "f(Generator? g=None) -> Tensor"),
        ("", 'm.def("f", [](at::Tensor a, int n) -> at::Tensor { return a.narrow(0, 0, n); });', "f(Tensor a, int n) -> Tensor"),
        ("at::Tensor f(at::Tensor lambda) { return lambda; }", 'm.def("f", torch::wrap_pybind_function(f));', "f(Tensor arg0) -> Tensor"),
        ("int f(int a);\nint f(int a, int b);", 'm.def("f", py::overload_cast<int, int>(&f), py::arg("a"), py::arg("b"));', "f(int a, int b) -> int"),
        ("int f(int a);\nint f(int a, int b);", 'm.def("f", &f, py::arg("x"), py::arg("y"));', "f(int x, int y) -> int"),
        ("int f(int a, int b);\nint f(int a);", 'm.def("f", &f, py::arg("x"));', "f(int x) -> int"),
        ("int f(int a);\nint f(int a, int b);", 'm.def("f", &f, py::arg("x"));', "f(int x) -> int"),
        ("int f(int a, int b);\nint f(int a);", 'm.def("f", &f, py::arg("x"), py::arg("y"));', "f(int x, int y) -> int"),
        ("void f(std::string how);", 'm.def("f", &f, py::arg("how") = "sum");', r'f(str how=\"sum\") -> ()'),
        ("#ifdef X\nstatic int f(int a /* , b */) { return a; }  // f(\n#endif", 'm.def("f", &f);', "f(int a) -> int"),
        ("template <typename T> int f(int a);", 'm.def("f", &f<float>);', "f(int a) -> int"),
        ("extern \"C\" int f(int a);", 'm.def("f", &f);', "f(int a) -> int"),
        ("namespace a { class Tensor { int n; }; }\nint f(const Tensor& x) { return x.size(0); }", 'm.def("f", &f);', "f(Tensor x) -> int"),
        ("namespace a { class Tensor; int f(const Tensor& x) { return x.size(0); } }", 'm.def("f", &a::f);', "f(Tensor x) -> int"),
        ("auto f(int a) -> at::Tensor;", 'm.def("f", &f);', "f(int a) -> Tensor"),
    ],
)  # fmt: skip
def test_a_bound_function_gets_a_schema(code: str, binding: str, schema: str) -> None:
    assert made(code, binding) == (f'ops.def("{schema}", &kci_operators::f_op);', "")


@pytest.mark.parametrize(
    ("code", "binding", "why"),
    [
        ("", 'm.def("f", &f);', "no declaration of `f`"),
        ("void f(Thing t);", 'm.def("f", &f);', "cannot pass `Thing`"),
        ("void f(float* p);", 'm.def("f", &f);', "cannot pass"),
        ("void f(py::ssize_t n);", 'm.def("f", &f);', "cannot pass"),
        ("Thing f();", 'm.def("f", &f);', "cannot return `Thing`"),
        (
            "namespace a { struct Tensor { int n; }; int f(const Tensor& x); }",
            'm.def("f", &a::f);',
            "cannot pass `const Tensor&`",
        ),
        (
            "template <class T> class optional { T x; };\nint f(optional<int> x);",
            'm.def("f", &f);',
            "cannot pass `optional<int>`",
        ),
        (
            "namespace a { struct Tensor { int n; }; Tensor f(at::Tensor x); }",
            'm.def("f", &a::f);',
            "cannot return `Tensor`",
        ),
        ("auto f() { return 1; }", 'm.def("f", &f);', "cannot return `auto`"),
        ("", 'm.def("f", [](int a) { return a; });', "a lambda has to say what it returns"),
        ("", 'py::class_<Thing>(m, "Thing").def(py::init<>()).def("go", &Thing::go);', "it is a class"),
        ("enum E { A };", 'py::enum_<E>(m, "E").value("A", A);', "it is an enum"),
    ],
)
def test_what_pytorch_cannot_have_is_left_out_and_said(code: str, binding: str, why: str) -> None:
    registered, left = made(code, binding)
    assert registered == ""
    assert why in left


def test_conditions_and_overloads_stay() -> None:
    code = "int f(int a);\nint g(int a, int b);"
    registered, _ = made(code, '#ifdef WITH_CUDA\nm.def("f", &f);\n#else\nm.def("f", &g);\n#endif')
    assert registered.splitlines() == [
        'ops.def("f(int a) -> int", &kci_operators::f_op);',
        'ops.def("f.overload1(int a, int b) -> int", &kci_operators::f_op1);',
    ]
    text = f'{code}\nPYBIND11_MODULE(a, m) {{\n#ifdef WITH_CUDA\nm.def("f", &f);\n#endif\n}}'
    changed, _, _ = operators_of({"a.cpp": text}, ["a.cpp"], read_code({"a.cpp": text}))
    assert changed["a.cpp"].count("#ifdef WITH_CUDA") == 2


def test_a_macro_that_binds_by_name_is_written_out() -> None:
    short = "#define REG(name) m.def(#name, &name)\nREG(f);  // text\nREG(g);"
    registered, left = made("int f(int a);\nint g();", short)
    assert (registered.count("ops.def"), left) == (2, "; "), "nothing is left out"


def test_the_stable_forms_are_registrations_too() -> None:
    text = 'STABLE_TORCH_LIBRARY(old, m) { m.def("h(int a) -> int"); }\nSTABLE_TORCH_LIBRARY_IMPL(old, CPU, m) {}\n'
    changed, operators, _ = operators_of({"a.cpp": text}, ["a.cpp"], read_code({"a.cpp": text}))
    assert "STABLE_TORCH_LIBRARY_FRAGMENT(TORCH_EXTENSION_NAME, m)" in changed["a.cpp"]
    assert "STABLE_TORCH_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CPU, m)" in changed["a.cpp"]
    assert [item.name for item in operators] == ["h"]


def test_registrations_get_the_namespace_of_the_build() -> None:
    text = (
        'static auto version = torch::RegisterOperators("old::v", [] { return v(1, 2); });\n'
        'static auto unknown = torch::RegisterOperators().op("old::w", torch::RegisterOperators::options().kernel<W>());\n'
        'static auto registry = torch::RegisterOperators().op("old::f", &f)\n  .op("old::g(Tensor a) -> Tensor", &g);\n'
        'TORCH_LIBRARY(old, m) { m.def("old::h(int a) -> int"); /* TORCH_LIBRARY(x, */ }\nTORCH_LIBRARY_IMPL(old, CUDA, m) { m.impl("h", &h); }\n'
        "TORCH_LIBRARY_IMPL(aten, CUDA, m) {}\n"
    )
    changed, operators, namespaces = operators_of({"a.cpp": text}, ["a.cpp"], read_code({"a.cpp": text}))
    new = changed["a.cpp"]
    assert 'ops.def("f", &f);\n  ops.def("g(Tensor a) -> Tensor", &g);' in new
    assert 'TORCH_LIBRARY_FRAGMENT(TORCH_EXTENSION_NAME, m) { m.def("h(int a) -> int");' in new
    assert 'ops.def("v", [] { return v(1, 2); });\n}' in new
    assert "TORCH_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CUDA, m)" in new
    assert "TORCH_LIBRARY_IMPL(aten, CUDA, m)" in new
    assert sorted(item.name for item in operators if not item.left) == ["f", "g", "h", "v"]
    assert [(item.name, item.line) for item in operators if item.left] == [("RegisterOperators", 2)]
    assert namespaces == {"old"}


@pytest.mark.parametrize(
    ("body", "writes"),
    [
        ("x.add_(1);", True),
        ("x.add(1);", False),
        ("x[0] = 1;", True),
        ("at::add_out(x, x, x);", True),
        ("x.requires_grad_(true);", False),
        ("auto y = x.contiguous(); y.add(1);", False),
        ("k<<<1, 2>>>(x.data_ptr<float>(), n);", True),
        ("r<float><<<1, 2>>>(n, x.data_ptr<float>());", False),
        ("c(x.data_ptr<float>());", False),
        ("const float* p = x.data_ptr<float>();", False),
        ("float* p = x.data_ptr<float>(); p[3] += 1;", True),
        ("float* p = x.data_ptr<float>(); n = p[3];", False),
        ("float* p = x.data_ptr<float>(); if (p[3]) { other[0] = 1; }", False),
        ("float* p = x.data_ptr<float>(); p[a[b[n]] == 1] = 1;", True),
        ("const acc_t p = x.packed_accessor32<float, 1>(); k<<<1, 2>>>(p, n);", True),
        ("float* p = x.data_ptr<float>(); atomicAdd(p + 1, 1);", True),
        ("const auto p = x.data_ptr<float>(); p[3] = 1;", True),
        ("float* const p = x.data_ptr<float>(); p[3] = 1;", True),
        ("float const* p = x.data_ptr<float>(); somewhere(p);", False),
        ("const auto* p = x.data_ptr<float>(); somewhere(p);", False),
        ("float* p = x.data_ptr<float>(); float* q = p + n; *q += 1;", True),
        ("float* p = x.data_ptr<float>(); float* q = p + n; n = *q;", False),
        ("float* p = x.data_ptr<float>(); const float* q = &p[n]; const float *r = p; n = *q + *r;", False),
        ("float* p = x.data_ptr<float>(); for (float* q = p; q < end; q++) somewhere(q);", None),
        ("float* p = x.data_ptr<float>(); params.p = p;", None),
        ("x.mutable_data_ptr<float>();", True),
        ("x.data_ptr<const float>();", False),
        ("inner(n, x);", True),
        ("outer(x);", False),
        ("somewhere(x.data_ptr());", None),
        ("somewhere(x);", None),
        ("TORCH_CHECK(x.is_cuda()); return x;", False),
        ("float* p = x.data_ptr<float>(); reinterpret_cast<float4*>(p)[0] = v;", True),
        ("float* p = x.data_ptr<float>(); *reinterpret_cast<Vec<float, 4>*>(p + n) = v;", True),
        ("float* p = x.data_ptr<float>(); reinterpret_cast<float4*>(p + n)[1] = v;", True),
        ("float* p = x.data_ptr<float>(); ((float4*)p)[0] = v;", True),
        ("float* p = x.data_ptr<float>(); float4* q = (float4*)p; q[0] = v;", True),
        ("float* p = x.data_ptr<float>(); auto q = reinterpret_cast<float4*>(p); q[0] = v;", True),
        ("float* p = x.data_ptr<float>(); k<<<1, 2>>>(reinterpret_cast<half*>(p), n);", True),
        ("float* p = x.data_ptr<float>(); v = reinterpret_cast<float4*>(p)[0];", False),
        (
            "float* p = x.data_ptr<float>(); v = ((const float4*)p)[0]; somewhere(reinterpret_cast<const float4*>(p));",
            False,
        ),
        ("k<<<1, 2>>>(reinterpret_cast<half*>(x.data_ptr()), n);", True),
        ("somewhere(static_cast<const half*>(x.data_ptr()));", False),
        ("float *p, *q; p = x.data_ptr<float>(); if (n) { q = &p[n]; } *q += 1;", True),
        ("float *p, *q; p = x.data_ptr<float>(); if (n) { q = &p[n] - n; } n += *q;", False),
        ("float* p = x.data_ptr<float>(); if (*p != n && *p <= 1) n = 0;", False),
        ("float* p = x.data_ptr<float>(); float* q = p; atomicAdd(other, n * *q);", False),
        ("auto a = x.accessor<float, 4>(); k2(&a[n][n][0][0], n);", True),
        ("auto a = x.accessor<float, 4>(); c(&a[n][n][0][0]); v = n & a[0];", False),
        ("auto a = x.accessor<float, 2>(); auto row = a[n]; row[0] = 1;", True),
        ("auto a = x.accessor<float, 2>(); auto row = a[n]; v = row[0];", False),
        ("float* p = x.data_ptr<float>(); float& v = p[n]; v += 1;", True),
        ("float* p = x.data_ptr<float>(); float v = p[n]; v += 1; somewhere(v);", False),
        ("auto a = x.accessor<float, 2>(); into(a[n], n);", True),
        ("auto a = x.accessor<float, 2>(); out_of(a[n], n); somewhere(a[n][0]);", False),
        ("auto error = k2(x.data_ptr<float>(), n);", True),
        ("set(params, x.data_ptr());", True),
        ("params.x_ptr = x.data_ptr();", True),
        ("params.y_ptr = x.data_ptr();", False),
        ("params.z_ptr = x.data_ptr();", None),
        ("auto y = x.value(); y.zero_();", True),
        ("float* p = x.data_ptr<float>(); loader.store(p, 1);", None),
    ],
)
def test_what_a_body_does_with_a_tensor(body: str, writes: bool | None) -> None:
    others = (
        "__global__ void k(float* p, int n) { p[n] = 1; }\n"
        "template <typename T> __global__ void r(int n, T* p) { n = p[0]; }\n"
        "int k2(float* p, int n) { p[n] = 1; return n; }\nvoid set(Params p, void* data) { p.x_ptr = data; }\n"
        "void into(at::TensorAccessor<float, 1> row, int n) { row[0] = n; }\nint out_of(at::TensorAccessor<float, 1> row, int n) { return row[n]; }\n"
        "void c(const float* p);\nvoid inner(int n, at::Tensor t) { t.mul_(n); }\nvoid outer(at::Tensor t) { t.size(0); }\n"
        "void use(Params p) { float* q = reinterpret_cast<float*>(p.x_ptr); q[1] = 2; const float* r = (const float*)p.y_ptr; }\n"
    )
    code = read_code({"a.cu": f"{others}void f(at::Tensor x, int n) {{ {body} }}"})
    assert writes_to(code.functions["f"][0], 0, code) is writes


@pytest.mark.parametrize(
    "uses",
    [
        "q = &p[n]; " * 5000,
        "auto v = p[n]; " * 5000,
        "q = p; r = q; p = r; s = r; t = s; " * 200,
        "".join(f"p{number} = p; " for number in range(200)),
        "g(p); g(p); g(somewhere(p)); " * 90,
    ],
)
def test_hostile_code_is_asked_about_and_costs_no_time(uses: str) -> None:
    text = f"void g(float* p) {{ {uses} }}\nvoid f(at::Tensor x, int n) {{ float* p = x.data_ptr<float>(); {uses} }}"
    code = read_code({"a.cu": text})
    assert writes_to(code.functions["f"][0], 0, code) is None


def test_a_name_says_what_a_body_does_not() -> None:
    code = read_code({"a.cpp": "void f_(at::Tensor a, at::Tensor b) { g(); }\nvoid h(at::Tensor out) { g(); }"})
    assert writes_to(code.functions["f_"][0], 0, code) is True
    assert writes_to(code.functions["f_"][0], 1, code) is False
    assert writes_to(code.functions["h"][0], 0, code) is None


def test_what_a_lambda_does_under_a_condition_stays_under_it() -> None:
    body = (
        '  m.def("one", []() -> bool {\n#ifdef WITH_CUDA\n    return true;\n#else\n    return false;\n#endif\n  });\n'
    )
    text = f"PYBIND11_MODULE(x, m) {{\n#ifndef LITTLE\n{body}{body.replace('one', 'too')}#endif\n}}\n"
    new, made = with_operators("a.cpp", text, read_code({"a.cpp": text}))
    assert [item.name for item in made] == ["one", "too"]
    lines = [line.strip() for line in new.splitlines()]
    assert lines.count("#ifdef WITH_CUDA") == lines.count("#else") == 2, "in the two wrappers alone"
    assert lines.count("#ifndef LITTLE") == 2, "around the wrappers, and around the registrations"
    assert lines.index("return true;") == lines.index("#ifdef WITH_CUDA") + 1
    assert lines.index("return false;") == lines.index("#else") + 1


FORMS = Path(__file__).parent / "every_form"
"""An extension that compiles with pybind11. `tests/starter/test_init_builds.py` builds what kci makes of it, and calls it."""

LEFT = {
    'm.attr("VERSION") = 3', "maybe_order", "list_of_bools", "view_of_bools", "list_of_texts", "list_of_orders", "list_of_lists",
    "list_of_maybe", "fixed_size", "typed_int", "typed_double", "lambda", "an_open_lambda", "a_pointer", "an_array", "a_move",
    "counter", "letters", "Mode", "Counter", "below",
}  # fmt: skip


def test_each_binding_becomes_an_operator_or_is_said(tmp_path: Path) -> None:
    text = (FORMS / "forms.cpp").read_text(encoding="utf-8")
    made = from_setup_py(FORMS, choose("forms"))
    said = {found[1] for line in made.left if (found := re.match(r"forms.cpp:\d+: `(.*?)` is left out: ", line))}
    assert said == LEFT
    bound = set(re.findall(r'\.def(?:_submodule)?\("(\w+)"|py::\w+_<.*?"(\w+)"', text)) - {("next", ""), ("step", "")}
    registered = set(re.findall(r'ops\.def\("(\w+)', made.files["forms.cpp"].decode()))
    assert registered == {one or two for one, two in bound} - LEFT
    for line in made.left:
        if found := re.match(r"forms.cpp:(\d+): `(\w+)`", line):
            assert found[2] in text.splitlines()[int(found[1]) - 1], "its line is the one that binds it"
    assert any("`no_such_default`: callers have to give `a = 1`, `b = 1 << 4`: " in line for line in made.left)
