"""Tests of the built kernel.

LOCAL_KERNELS=kci-examples/swiglu=DIR decides which build is loaded.
"""

import inspect

import pytest
import torch
import torch.nn.functional as F
from kernels import get_kernel

pytestmark = pytest.mark.kernels_ci

# Two units in the last place of the dtype around 1.
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
DTYPES = list(TOLERANCE)


@pytest.fixture(scope="module")
def swiglu():
    return get_kernel("kci-examples/swiglu", version=1)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


# Python only, so one variant works on every device that torch has.
@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return request.param


def reference(gate, up):
    return (F.silu(gate.double()) * up.double()).to(gate.dtype)


def assert_close(actual, expected):
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (5,), (0, 4), (33, 129), (2, 3, 1024)])
def test_equals_torch(swiglu, device, shape, dtype):
    gate, up = (torch.randn(shape, device=device, dtype=dtype) for _ in range(2))
    assert_close(swiglu.swiglu(gate, up), reference(gate, up))


@pytest.mark.parametrize("dtype", DTYPES)
def test_halves(swiglu, device, dtype):
    x = torch.randn(3, 5, 26, device=device, dtype=dtype)
    y = swiglu.silu_and_mul(x)
    assert y.shape == (3, 5, 13)
    assert_close(y, reference(x[..., :13], x[..., 13:]))


def test_non_contiguous_arguments(swiglu, device):
    gate, up = torch.randn(8, 6, device=device).t(), torch.randn(6, 16, device=device)[:, ::2]
    y = swiglu.swiglu(gate, up)
    assert y.is_contiguous()
    assert_close(y, reference(gate, up))


@pytest.mark.parametrize(
    ("gate", "up", "error", "message"),
    [
        (
            torch.zeros(4, dtype=torch.float64),
            torch.zeros(4, dtype=torch.float64),
            TypeError,
            "must be float32",
        ),
        (
            torch.zeros(4),
            torch.zeros(4, dtype=torch.float16),
            TypeError,
            "up has dtype torch.float16",
        ),
        (torch.zeros(4), torch.zeros(1), ValueError, r"up has shape \(1,\)"),
        (
            torch.zeros(4),
            torch.zeros(4, device="meta"),
            ValueError,
            "up is on meta but gate is on cpu",
        ),
    ],
)
def test_wrong_arguments_are_refused(swiglu, gate, up, error, message):
    with pytest.raises(error, match=message):
        swiglu.swiglu(gate, up)


@pytest.mark.parametrize("shape", [(), (3,), (4, 7)])
def test_odd_halves_are_refused(swiglu, shape):
    with pytest.raises(ValueError, match="must have an even size"):
        swiglu.silu_and_mul(torch.zeros(shape))


def test_gradients_equal_torch(swiglu, device):
    arguments = [torch.randn(7, 33, device=device, requires_grad=True) for _ in range(2)]
    grad = torch.randn(7, 33, device=device)
    ours = torch.autograd.grad(swiglu.swiglu(*arguments), arguments, grad)
    theirs = torch.autograd.grad(reference(*arguments), arguments, grad)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_operator_registration(swiglu, device):
    gate, up = (torch.randn(4, 6, device=device, requires_grad=True) for _ in range(2))
    torch.library.opcheck(swiglu._ops.ops.swiglu.default, (gate, up))
    transposed = tuple(x.detach().t().requires_grad_() for x in (gate, up))
    torch.library.opcheck(swiglu._ops.ops.swiglu.default, transposed)


def test_layer_compiles(swiglu, device):
    layer = torch.compile(swiglu.layers.SiluAndMul(), fullgraph=True, backend="aot_eager")
    x = torch.randn(4, 8, device=device)
    assert_close(layer(x), reference(x[..., :4], x[..., 4:]))


def test_layer_is_stateless(swiglu):
    members = {name for name, _ in inspect.getmembers(swiglu.layers.SiluAndMul)}
    plain = {name for name, _ in inspect.getmembers(torch.nn.Module)}
    assert members - plain <= {"has_backward", "can_torch_compile"}
    assert swiglu.layers.SiluAndMul.__init__ is torch.nn.Module.__init__
