import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[3] / "tools"


@pytest.mark.slow
def test_a_round_reads_files_of_every_format_and_finds_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fuzzing", "--minutes", "0.0001", "--cases", "2", "--keep", str(tmp_path / "kept")]
    path = os.pathsep.join([str(TOOLS), str(TOOLS.parent / "src")])
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path}
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 rounds, 0 problems" in result.stdout
    assert int(result.stdout.split()[0]) >= 60
    assert not (tmp_path / "kept").exists()
