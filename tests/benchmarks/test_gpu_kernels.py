import pytest
import torch

from helpers.benchmarks import output_of, run_benchmark


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_cuda_it_says_so_in_one_sentence() -> None:
    result = run_benchmark("gpu_kernels")
    assert result.returncode != 0
    assert "CUDA" in result.stderr and len(result.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_kernels_agree_with_their_definitions() -> None:
    printed = output_of("gpu_kernels", "--only", "check hog full")
    assert "check hog full" in printed and "FAILED" not in printed
