"""Tests of the built kernel.

LOCAL_KERNELS=kci-examples/relu-tvm-ffi=DIR decides which build is loaded.
"""

import pytest
import torch
from kernels import get_kernel

pytestmark = pytest.mark.kernels_ci


@pytest.fixture(scope="module")
def kernel():
    return get_kernel("kci-examples/relu-tvm-ffi", version=1, backend="cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (7,), (0, 4), (33, 129)])
def test_equals_torch(kernel, shape, dtype):
    x = torch.randn(shape, dtype=dtype)
    out = torch.empty_like(x)
    assert kernel.relu(x, out) is out
    torch.testing.assert_close(out, torch.relu(x), rtol=0, atol=0)


def test_what_it_cannot_take_is_an_error(kernel):
    with pytest.raises(TypeError, match="neither float32 nor float64"):
        kernel.relu(torch.zeros(3, dtype=torch.int32), torch.zeros(3, dtype=torch.int32))
    with pytest.raises(ValueError, match="same dtype and number"):
        kernel.relu(torch.zeros(3), torch.zeros(4))
