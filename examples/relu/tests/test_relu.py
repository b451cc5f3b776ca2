"""Tests of the built kernel. LOCAL_KERNELS=kci-examples/relu=DIR decides which build is loaded."""

import inspect

import pytest
import torch
from kernels import get_kernel

pytestmark = pytest.mark.kernels_ci

# A compiled variant serves one backend, and the loader takes the one of this machine.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(scope="module")
def relu():
    return get_kernel("kci-examples/relu", version=1)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (0, 4), (33, 129), (3, 1000, 1001)])
def test_equals_torch(relu, shape, dtype):
    x = torch.randn(shape, device=DEVICE, dtype=dtype)
    y = relu.relu(x)
    assert y.dtype == dtype
    torch.testing.assert_close(y, torch.relu(x), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values(relu, dtype):
    x = torch.tensor(
        [float("nan"), float("inf"), -float("inf"), -0.0, 0.0], device=DEVICE, dtype=dtype
    )
    torch.testing.assert_close(relu.relu(x), torch.relu(x), rtol=0, atol=0, equal_nan=True)


def test_non_contiguous_input(relu):
    x = torch.randn(64, 48, device=DEVICE).t()[::2]
    y = relu.relu(x)
    assert y.is_contiguous()
    torch.testing.assert_close(y, torch.relu(x), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.bool])
def test_other_dtypes_are_refused(relu, dtype):
    with pytest.raises(TypeError, match="must be float32, float16 or bfloat16"):
        relu.relu(torch.zeros(4, device=DEVICE, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_equals_torch(relu, dtype):
    x = torch.randn(33, 65, device=DEVICE, dtype=dtype, requires_grad=True)
    grad = torch.randn_like(x)
    (ours,) = torch.autograd.grad(relu.relu(x), x, grad)
    (theirs,) = torch.autograd.grad(torch.relu(x), x, grad)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_operator_registration(relu):
    x = torch.randn(8, 6, device=DEVICE, requires_grad=True)
    torch.library.opcheck(relu.ops.relu.default, (x,))
    torch.library.opcheck(relu.ops.relu.default, (x.detach().t().requires_grad_(),))


def test_layer_compiles(relu):
    layer = torch.compile(relu.layers.ReLU(), fullgraph=True, backend="aot_eager")
    x = torch.randn(16, 16, device=DEVICE)
    torch.testing.assert_close(layer(x), torch.relu(x), rtol=0, atol=0)


def test_layer_is_stateless(relu):
    members = {name for name, _ in inspect.getmembers(relu.layers.ReLU)}
    plain = {name for name, _ in inspect.getmembers(torch.nn.Module)}
    assert members - plain <= {"has_backward", "can_torch_compile"}
    assert relu.layers.ReLU.__init__ is torch.nn.Module.__init__
