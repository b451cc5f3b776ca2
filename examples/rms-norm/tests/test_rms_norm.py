"""Tests of the built kernel.

LOCAL_KERNELS=kci-examples/rms-norm=DIR decides which build is loaded.
"""

import inspect
import types

import pytest
import torch
import torch.nn.functional as F
from kernels import get_kernel

pytestmark = pytest.mark.kernels_ci

# A compiled variant serves one backend, and the loader takes the one of this machine.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Two units in the last place of the dtype around 1; float32 leaves room for the order of the sum.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
DTYPES = list(TOLERANCE)
# The last sizes leave the last warp half empty, and make a thread take several elements.
SHAPES = [(1,), (5,), (4, 33), (0, 8), (2, 3, 1024), (7, 4099)]
EPS = 1e-6


@pytest.fixture(scope="module")
def rms_norm():
    return get_kernel("kci-examples/rms-norm", version=1)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def randn(*shape, dtype=torch.float32):
    return torch.randn(*shape, device=DEVICE, dtype=dtype)


def reference(x, weight, eps=EPS):
    return F.rms_norm(x.double(), (x.shape[-1],), weight.double(), eps).to(x.dtype)


def assert_close(actual, expected):
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_torch(rms_norm, shape, dtype):
    x, weight = randn(*shape, dtype=dtype), randn(shape[-1], dtype=dtype)
    assert_close(rms_norm.rms_norm(x, weight, EPS), reference(x, weight))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_add_equals_torch(rms_norm, shape, dtype):
    x, residual, weight = (
        randn(*shape, dtype=dtype),
        randn(*shape, dtype=dtype),
        randn(shape[-1], dtype=dtype),
    )
    y, summed = rms_norm.add_rms_norm(x, residual, weight, EPS)
    torch.testing.assert_close(summed, x + residual, rtol=0, atol=0)
    assert_close(y, reference(x + residual, weight))


def test_sums_are_taken_in_float32(rms_norm):
    # The square of 300 is more than float16 can hold.
    x = torch.full((2, 512), 300.0, device=DEVICE, dtype=torch.float16)
    weight = torch.ones(512, device=DEVICE, dtype=torch.float16)
    assert_close(rms_norm.rms_norm(x, weight), torch.ones_like(x))


def test_eps_counts(rms_norm):
    x, weight = randn(3, 8) * 1e-3, randn(8)
    assert_close(rms_norm.rms_norm(x, weight, 0.5), reference(x, weight, 0.5))


def test_non_contiguous_arguments(rms_norm):
    x, residual, weight = randn(96, 8).t(), randn(8, 192)[:, ::2], randn(192)[::2]
    y = rms_norm.rms_norm(x, weight)
    assert y.is_contiguous()
    assert_close(y, reference(x, weight))
    y, summed = rms_norm.add_rms_norm(x, residual, weight)
    assert_close(y, reference(x + residual, weight))
    assert_close(summed, x + residual)


@pytest.mark.parametrize(
    ("x", "weight", "eps", "message"),
    [
        (
            torch.zeros(2, 4, dtype=torch.float64),
            torch.zeros(4, dtype=torch.float64),
            EPS,
            "must be float32, float16",
        ),
        (torch.zeros(2, 4), torch.zeros(3), EPS, "one dimension of size 4"),
        (torch.zeros(2, 4), torch.zeros(1, 4), EPS, "one dimension of size 4"),
        (
            torch.zeros(2, 4),
            torch.zeros(4, dtype=torch.float16),
            EPS,
            "weight has dtype Half but input has dtype Float",
        ),
        (torch.zeros(()), torch.zeros(1), EPS, "at least one dimension"),
        (torch.zeros(2, 0), torch.zeros(0), EPS, "must not be empty"),
        (torch.zeros(2, 4), torch.zeros(4), -1.0, "eps must not be negative"),
        (torch.zeros(2, 4), torch.zeros(4), float("nan"), "eps must not be negative"),
    ],
)
def test_wrong_arguments_are_refused(rms_norm, x, weight, eps, message):
    x, weight = x.to(DEVICE), weight.to(DEVICE)
    with pytest.raises(RuntimeError, match=message):
        rms_norm.rms_norm(x, weight, eps)
    with pytest.raises(RuntimeError, match=message):
        rms_norm.add_rms_norm(x, x, weight, eps)


@pytest.mark.parametrize("residual", [torch.zeros(2, 5), torch.zeros(4), torch.zeros(1, 2, 4)])
def test_wrong_residual_is_refused(rms_norm, residual):
    with pytest.raises(RuntimeError, match="residual must have the shape of input"):
        rms_norm.add_rms_norm(
            torch.zeros(2, 4, device=DEVICE), residual.to(DEVICE), torch.zeros(4, device=DEVICE)
        )


def test_residual_of_another_dtype_is_refused(rms_norm):
    x = torch.zeros(2, 4, device=DEVICE)
    with pytest.raises(RuntimeError, match="residual has dtype BFloat16 but input has dtype Float"):
        rms_norm.add_rms_norm(x, x.bfloat16(), x[0])


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a second kind of device")
def test_weight_on_another_device_is_refused(rms_norm):
    with pytest.raises(RuntimeError, match="on the same device"):
        rms_norm.rms_norm(torch.zeros(2, 4, device=DEVICE), torch.zeros(4))


def test_gradients_equal_torch(rms_norm):
    arguments = [
        randn(5, 3, 65).requires_grad_(),
        randn(5, 3, 65).requires_grad_(),
        randn(65).requires_grad_(),
    ]
    x, residual, weight = arguments
    grads = [randn(5, 3, 65), randn(5, 3, 65)]

    ours = torch.autograd.grad(rms_norm.rms_norm(x, weight), (x, weight), grads[0])
    theirs = torch.autograd.grad(reference(x, weight), (x, weight), grads[0])
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)

    ours = torch.autograd.grad(rms_norm.add_rms_norm(x, residual, weight), arguments, grads)
    summed = x + residual
    theirs = torch.autograd.grad((reference(summed, weight), summed), arguments, grads)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_operator_registration(rms_norm):
    x, weight = randn(4, 6).requires_grad_(), randn(6).requires_grad_()
    torch.library.opcheck(rms_norm.ops.rms_norm.default, (x, weight, EPS))
    torch.library.opcheck(rms_norm.ops.rms_norm.default, (randn(6, 4).t(), weight, EPS))
    torch.library.opcheck(rms_norm.ops.add_rms_norm.default, (x, randn(4, 6), weight, EPS))


@pytest.mark.parametrize("eps", [None, 1e-5])
def test_layer_replaces_torch_and_compiles(rms_norm, eps):
    layer = torch.nn.RMSNorm(48, eps=eps, device=DEVICE)
    torch.nn.init.normal_(layer.weight)
    x = randn(9, 48)
    expected = layer(x)
    layer.forward = types.MethodType(rms_norm.layers.RMSNorm.forward, layer)
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected, rtol=1e-5, atol=1e-5)


def test_layer_is_stateless(rms_norm):
    members = {name for name, _ in inspect.getmembers(rms_norm.layers.RMSNorm)}
    plain = {name for name, _ in inspect.getmembers(torch.nn.Module)}
    assert members - plain <= {"has_backward", "can_torch_compile"}
    assert rms_norm.layers.RMSNorm.__init__ is torch.nn.Module.__init__
