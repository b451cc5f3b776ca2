"""What was probably meant by a word."""

from __future__ import annotations

from growth import assert_in_proportion
from kci.utils.suggest import nearest_name


def test_the_nearest_name() -> None:
    assert nearest_name("relu_cpu.cp", ["relu.cpp", "relu_cpu.cpp", "silu.cu"]) == "relu_cpu.cpp"
    assert nearest_name("maxjobs", ["max-jobs", "cores"]) == "max-jobs"
    assert nearest_name("nothing", ["max-jobs", "cores"]) == ""


def test_among_thousands_of_names_those_that_begin_like_it_are_compared() -> None:
    names = [f"{index}_kernel.cu" for index in range(3000)] + ["flash_bwd_hdim64.cu"]
    assert nearest_name("flash_bwd_hdim46.cu", names) == "flash_bwd_hdim64.cu"
    assert_in_proportion(
        lambda size: [nearest_name(f"9_kernal_{size}", names[:size]) for _ in range(3)], 2800
    )
