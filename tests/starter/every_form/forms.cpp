// Every form in which an extension binds a function; what kci leaves out stands in tests/starter/test_operators.py.
#include <torch/extension.h>
#include "forms.h"

using torch::Tensor;

// Tensors
Tensor by_value(Tensor x) { return x * 2; }
at::Tensor by_const(const at::Tensor& a, const torch::Tensor &b) { return a + b; }
void by_value_written(torch::Tensor x) { x.add_(1); }
void by_reference_written(torch::Tensor& x) { x.mul_(3); }
torch::Tensor& given_back(torch::Tensor& x) { x.zero_(); return x; }
void pointer_written(torch::Tensor x) {
  float* p = x.data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); i++) p[i] = i;
}
void elsewhere_written(at::Tensor out, double value) { shop::fill(out, value); }
static int unnamed(Tensor, int, long long) { return 7; }

// Numbers, texts
bool numbers(bool a, int b, float c, double d, int64_t e, unsigned int f, size_t g, const long h, uint8_t i) {
  return a && b + c + d + e + f + g + h + i == 44;
}
std::string text(const std::string& a, std::string b) { return a + b; }
int64_t reference_to_number(const int64_t& a, int64_t& b) { return a + b; }
c10::Half half(c10::Half x) { return x; }
float no_argument() { return 0.5; }
int void_argument(void) { return 3; }

// What may be absent
Tensor maybe(Tensor x, c10::optional<Tensor> y, const std::optional<at::Tensor>& z) {
  if (y.has_value()) x = x + *y;
  return z.has_value() ? x + z.value() : x;
}
void maybe_written(c10::optional<at::Tensor>& x) { if (x.has_value()) x->add_(1); }
Tensor maybe_constant(std::optional<const at::Tensor>& x) { return x.has_value() ? *x + 1 : torch::zeros({1}); }
double maybe_numbers(c10::optional<int> a, const c10::optional<double>& b, std::optional<float> c, std::optional<int64_t> d, torch::optional<bool> e) {
  return a.value_or(1) + b.value_or(10) + c.value_or(100) + d.value_or(1000) + (e.value_or(false) ? 10000 : 0);
}
std::string maybe_text(c10::optional<std::string> a) { return a.value_or("none"); }
int maybe_order(std::optional<shop::inner::Order> order) { return order.has_value() ? static_cast<int>(*order) : -1; }
int maybe_number_by_reference(c10::optional<int>& a) { return a.value_or(5); }
int number_by_reference(int& a) { return a; }
std::optional<Tensor> maybe_result(Tensor x, bool there) { return there ? std::optional<Tensor>(x + 1) : std::nullopt; }

// Lists
std::vector<Tensor> list_of_tensors(std::vector<torch::Tensor> a, const std::vector<at::Tensor>& b) { return {a[0] + b[0], b[1]}; }
void list_written(std::vector<torch::Tensor>& list) { for (auto& x : list) x.add_(1); }
void item_written(std::vector<torch::Tensor> list) { list[0].view({-1}).add_(1); }
int64_t list_of_ints(std::vector<int> a, const std::vector<int64_t>& b, std::vector<long> c) { return a[0] + b[1] + c[0]; }
double list_of_floats(const std::vector<float>& a, std::vector<double> b) { return a[0] + b[0]; }
int64_t views(at::IntArrayRef a, c10::ArrayRef<int64_t> b, at::TensorList c, at::ArrayRef<double> d) { return a[0] + b[0] + c.size() + d.size(); }
std::vector<int64_t> list_result(int n) { return std::vector<int64_t>(n, n); }
int list_by_reference(std::vector<int>& a) { return a[0]; }
int list_of_bools(std::vector<bool> a) { return a[0]; }
int view_of_bools(at::ArrayRef<bool> a) { return a[0]; }
int list_of_texts(std::vector<std::string> a) { return a.size(); }
int list_of_orders(std::vector<shop::inner::Order> a) { return a.size(); }
std::vector<double> list_of_doubles_result() { return {1.5}; }
int list_of_lists(std::vector<std::vector<int64_t>> a) { return a.size(); }
int list_of_maybe(std::vector<c10::optional<Tensor>> a) { return a.size(); }
int fixed_size(std::array<int64_t, 2> a) { return a[0]; }

// Several results
std::tuple<Tensor, Tensor> two(Tensor x) { return {x, x + 1}; }
std::tuple<at::Tensor, int, double, bool, std::string> five(at::Tensor x) { return {x, 1, 2.5, true, "five"}; }
std::pair<Tensor, std::vector<Tensor>> a_pair(Tensor x) { return {x, {x, x}}; }
std::tuple<Tensor> one(Tensor x) { return x; }
auto trailing(Tensor x) -> std::tuple<Tensor, int64_t> { return {x, x.numel()}; }

// What torch has names for
int64_t of_torch(at::ScalarType a, const at::Scalar& b, c10::Device c, torch::Dtype d) { return (a == d) + b.toInt() + c.is_cpu(); }
Tensor drawn(Tensor x, c10::optional<at::Generator> generator) { return x; }

// Enums, overloads, templates, names
namespace shop {
int modes(Mode a, inner::Order b) { return a * 10 + static_cast<int>(b); }
Mode back(int a) { return a ? MEAN : SUM; }
namespace {
int hidden(int a) { return a + 1; }
}  // namespace
}  // namespace shop
enum { NO_NAME };
int over(int a) { return a + 1; }
double over(double a) { return a + 0.5; }
Tensor over(Tensor a) { return a + 2; }
int over(int a, int b) { return a + b; }
template <typename T>
T typed(T a) { return a / 2; }
int taken_names(int self, int from, int a) { return self - from - a; }
extern "C" int from_c(int a) { return a; }

// Defaults
std::string defaults(int a, double b, bool c, std::string d, c10::optional<Tensor> e, c10::optional<int64_t> f, float g, bool h, std::vector<int64_t> i) {
  return std::to_string(a) + " " + std::to_string(b) + " " + (c ? "yes" : "no") + " " + d + (e.has_value() ? " e" : "") + " " + std::to_string(f.value_or(9)) + " " + std::to_string(g) + (h ? " h " : " ") + std::to_string(i.size());
}
int no_such_default(int a, int b, int c) { return a + b + c; }
double written_ways(double a, double b, double c, int d, double e) { return a + b + c + d + e; }

// What no operator can have
int a_pointer(float* p) { return 0; }
int an_array(int sizes[]) { return sizes[0]; }
int a_move(Tensor&& x) { return 0; }
shop::Counter counter(int a) { return shop::Counter(a); }
const char* letters() { return "letters"; }

void more(py::module& m) {
  m.def("from_another_function", [](Tensor x, int n) -> Tensor { return x.narrow(0, 0, n); });
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace pybind11::literals;
  m.doc() = "every form";
  m.attr("VERSION") = 3;
  m.def("by_value", &by_value, "twice");
  m.def("by_const", by_const);
  m.def("by_value_written", &by_value_written).def("by_reference_written", &by_reference_written);
  m.def("given_back", &given_back, py::return_value_policy::reference);
  m.def("pointer_written", &pointer_written, py::call_guard<py::gil_scoped_release>());
  m.def("elsewhere_written", &elsewhere_written, py::arg("out"), py::arg("value").noconvert());
  m.def("unnamed", &unnamed);
  m.def("numbers", &numbers);
  m.def("text", &text);
  m.def("reference_to_number", &reference_to_number);
  m.def("half", &half);
  m.def("no_argument", &no_argument);
  m.def("void_argument", &void_argument);
  m.def("maybe", &maybe, "x"_a, "y"_a = py::none(), "z"_a = c10::nullopt);
  m.def("maybe_written", &maybe_written);
  m.def("maybe_constant", &maybe_constant);
  m.def("maybe_numbers", &maybe_numbers, py::arg("a") = py::none(), py::arg("b") = py::none(), py::arg("c") = py::none(), py::arg("d") = py::none(), py::arg("e") = py::none());
  m.def("maybe_text", &maybe_text, py::arg("a") = py::none());
  m.def("maybe_order", &maybe_order);
  m.def("maybe_number_by_reference", &maybe_number_by_reference);
  m.def("number_by_reference", &number_by_reference);
  m.def("maybe_result", &maybe_result);
  m.def("list_of_tensors", &list_of_tensors);
  m.def("list_written", &list_written);
  m.def("item_written", &item_written);
  m.def("list_of_ints", &list_of_ints);
  m.def("list_of_floats", &list_of_floats);
  m.def("views", &views);
  m.def("list_result", &list_result);
  m.def("list_by_reference", &list_by_reference);
  m.def("list_of_bools", &list_of_bools);
  m.def("view_of_bools", &view_of_bools);
  m.def("list_of_texts", &list_of_texts);
  m.def("list_of_orders", &list_of_orders);
  m.def("list_of_doubles_result", &list_of_doubles_result);
  m.def("list_of_lists", &list_of_lists);
  m.def("list_of_maybe", &list_of_maybe);
  m.def("fixed_size", &fixed_size);
  m.def("two", &two);
  m.def("five", &five);
  m.def("a_pair", &a_pair);
  m.def("one", &one);
  m.def("trailing", &trailing);
  m.def("of_torch", &of_torch);
  m.def("drawn", &drawn, py::arg("x"), py::arg("generator") = py::none());
  m.def("ordered", &shop::inner::ordered, py::arg("x"), py::arg("order"), py::arg("mode"));
  m.def("modes", &shop::modes);
  m.def("back", &shop::back);
  m.def("hidden", &shop::hidden);
  m.def("over", py::overload_cast<int>(&over));
  m.def("over", py::overload_cast<int, int>(&over));
  m.def("over_double", static_cast<double (*)(double)>(&over), py::arg("a"));
  m.def("over_tensor", (Tensor (*)(Tensor)) &over);
  m.def("typed_int", &typed<int>);
  m.def("typed_double", &typed<double>);
  m.def("delete", &no_argument);
  m.def("lambda", &no_argument);
  m.def("over_1", &void_argument);
  m.def("taken_names", &taken_names, py::arg("self"), py::arg("from"), py::arg("a"));
  m.def("from_c", &from_c);
  m.def("defaults", &defaults, py::arg("a") = -1, py::arg("b") = 1e-2, py::arg("c") = true, py::arg("d") = "mean", py::arg("e") = c10::optional<Tensor>(), py::arg("f") = std::nullopt, py::arg("g") = 2.f, py::arg("h") = 0, py::arg("i") = std::vector<int64_t>{});
  m.def("no_such_default", &no_such_default, py::arg("a") = 1, py::arg("b") = 1 << 4, py::arg("c") = 3);
  m.def("written_ways", &written_ways, py::arg("a") = .5, py::arg("b") = 1., py::arg("c") = 2, py::arg("d") = 3l, py::arg("e") = -1E2);
  m.def("a_lambda", [](const Tensor& x, int n = 2) -> Tensor { return x * n; }, py::arg("x"), py::arg("n") = 2);
  m.def("a_conditional_lambda", [](int a) -> int {
#ifdef WITH_MORE
    return not_there_without_more(a);
#else
    return a + 1;
#endif
  });
  m.def("an_open_lambda", [](int a) { return a; });
  m.def("a_pointer", &a_pointer);
  m.def("an_array", &an_array);
  m.def("a_move", &a_move);
  m.def("counter", &counter);
  m.def("letters", &letters);
  py::enum_<shop::Mode>(m, "Mode").value("SUM", shop::SUM).value("MEAN", shop::MEAN).export_values();
  py::class_<shop::Counter>(m, "Counter")
      .def(py::init<int64_t>())
      .def("next", [](shop::Counter& self) { auto now = self.next(); return now; })
      .def("step", [](int a) -> int { return a; });
#if defined(WITH_MORE) && \
    defined(WITH_EVEN_MORE)
  m.def("only_with_more", &no_argument);
#else
  m.def("only_without_more", &no_argument);
#endif
  auto below = m.def_submodule("below", "a submodule");
  below.def("in_submodule", &void_argument);
  more(m);
}
