"""Reads mutated files of every format until the time is over: ``PYTHONPATH=tools python -m fuzzing --minutes 5``.

Each round is a process of its own, because a parser written in C may crash. Files that show a problem are kept, and the
exit code is 1 if there are any.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random


def main() -> int:
    parser = argparse.ArgumentParser(description="Reads mutated files of every format that the package reads.")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first round; each round has the next one")
    parser.add_argument("--cases", type=int, default=300, help="files of each format in a round")
    parser.add_argument("--keep", type=Path, default=Path("fuzzing-problems"), help="folder for files with problems")
    parser.add_argument("--round", type=Path, help=argparse.SUPPRESS)  # run one round in this folder
    options = parser.parse_args()
    if options.round is not None:
        return _round(options.round, options.seed, options.keep, options.cases)
    end, seed, problems, files = time.monotonic() + 60 * options.minutes, options.seed, 0, 0
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "fuzzing", "--seed", str(seed), "--cases", str(options.cases)]
            command += ["--keep", str(options.keep), "--round", folder]
            child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            lines = child.stdout.splitlines()
            files += sum(int(line.split()[1]) for line in lines if line.startswith("read "))
            found = [line for line in lines if not line.startswith(("read ", "now "))]
            if child.returncode:
                now = ([line.removeprefix("now ") for line in lines if line.startswith("now ")] or ["nothing"])[-1]
                found.append(f"{now}: the process ended with code {child.returncode} (seed {seed})")
                options.keep.mkdir(exist_ok=True)
                if (Path(folder) / now).is_file():
                    shutil.copy(Path(folder) / now, options.keep / f"{seed}-crash-{now}")
        for line in found:
            print(line, flush=True)
        problems, seed = problems + len(found), seed + 1
    print(f"{files} files, {seed - options.seed} rounds, {problems} problems")
    return int(problems > 0)


def _round(folder: Path, seed: int, keep: Path, cases: int) -> int:
    import torch

    from fuzzing.formats import check_readable, formats, problem

    torch.set_num_threads(1)
    torch.manual_seed(0)
    kinds = list(formats(folder))
    check_readable(kinds, folder)
    for kind in kinds:
        print(f"now {kind.name}", flush=True)
        random = Random(f"{seed} {kind.name}")
        found: Counter[str] = Counter()
        for number in range(cases):
            if text := problem(kind, folder, random):
                found[text[:300]] += 1
                if found[text[:300]] == 1:
                    keep.mkdir(exist_ok=True)
                    shutil.copy(folder / kind.name, keep / f"{seed}-{number}-{kind.name}")
        for text, count in found.items():
            print(f"{kind.name}: {count} x {text!r} (seed {seed})")
        print(f"read {cases}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
