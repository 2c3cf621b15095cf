from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deepmatching.commands.addresses import LIBRARIES, require_addresses


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of addresses are enforced on Linux")
def test_too_few_addresses_for_the_libraries_are_one_sentence_and_help_is_still_there() -> None:
    code = f"""
import resource, sys
from pathlib import Path
taken = resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, 2 * (taken + {LIBRARIES // 2},))
from deepmatching.cli import main
main()
"""
    command = [sys.executable, "-c", code, "match", "a.png", "b.png"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert refused.stderr.startswith("deepmatching: The limit of addresses (ulimit -v) leaves ")
    helped = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)
    assert helped.returncode == 0 and "Usage" in helped.stdout


def test_without_a_limit_or_where_none_is_enforced_nothing_is_refused(tmp_path: Path) -> None:
    require_addresses()
    require_addresses(tmp_path / "missing")
