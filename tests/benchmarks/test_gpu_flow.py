import pytest
import torch

from helpers.benchmarks import run_benchmark


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_cuda_it_says_so_in_one_sentence() -> None:
    result = run_benchmark("gpu_flow", "a.png", "b.png")
    assert result.returncode != 0
    assert "CUDA" in result.stderr and len(result.stderr.splitlines()) == 1
