"""Writers on a full disk: one sentence, the old file stays, nothing else is left.

A limit on the size of files stands for the full disk. The writers run in a process of their own, since some libraries
end the process when they cannot write.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT = 2000

WRITE_ALL = """
import json, resource, sys
from pathlib import Path
import numpy as np, torch
from deepmatching.drawing import write_image
from deepmatching.errors import DeepMatchingError
from deepmatching.evaluation import Evaluation, PairResult
from deepmatching.flow.result import FlowResult
from deepmatching.io.flow import write_flow
from deepmatching.io.matches import MatchArrays, write_matches
from deepmatching.io.video import write_video
from deepmatching.io.weights import write_safetensors
from deepmatching.training.config import Config, DataConfig
from deepmatching.training.config_file import write_config
from deepmatching.training.log import CsvLog

folder, limit = Path(sys.argv[1]), int(sys.argv[2])
random = np.random.default_rng(0)
pixels = random.integers(0, 255, (60, 80, 3)).astype(np.uint8)
flow = random.normal(size=(60, 80, 2)).astype(np.float32)
points = random.uniform(0, 80, (500, 2)).astype(np.float32)
matches = MatchArrays(points, points, points[:, 0])
result = FlowResult(flow, random.uniform(size=(60, 80)).astype(np.float32))
pairs = tuple(PairResult(n, "data", str(n), 1.0, {"all": {"acc@2": 1.0}}) for n in range(50))

def log(path):
    path.write_text("")
    CsvLog(path, 0).add({"step": 0, **{f"column {n}": n for n in range(500)}})

writers = {
    **{f"m{s}": lambda p: write_matches(p, matches) for s in (".txt", ".npz", ".h5")},
    **{f"f{s}": lambda p: write_flow(p, flow) for s in (".flo", ".png", ".pfm", ".npy")},
    **{f"c{s}": result.save_confidence for s in (".npy", ".png")},
    **{f"p{s}": lambda p: write_image(p, pixels) for s in (".png", ".jpg", ".ppm")},
    **{f"v{s}": lambda p: write_video(p, [pixels] * 9) for s in (".mp4", ".avi")},
    "w.safetensors": lambda p: write_safetensors(p, {"w": torch.rand(1000)}, {}),
    "e.json": lambda p: Evaluation("matches", {}, 50, pairs).save(p),
    "c.toml": lambda p: write_config(Config(out="x" * 4000, data=DataConfig(photos="here")), p),
    "l.csv": log,
}
answers = {}
for name, write in writers.items():
    (folder / name).write_bytes(b"old")
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        write(folder / name)
        answers[name] = "written"
    except DeepMatchingError as error:
        answers[name] = str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(json.dumps(answers))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs limits on the size of files")
def test_on_a_full_disk_every_writer_says_so_and_keeps_the_old_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITE_ALL, str(tmp_path), str(LIMIT)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    answers = json.loads(result.stdout)
    assert len(answers) == 18
    for name, sentence in answers.items():
        assert sentence.startswith(f"Cannot write '{tmp_path / name}': "), name
        assert sentence.endswith("another disk.")
        assert (tmp_path / name).read_bytes() == (b"" if name == "l.csv" else b"old"), name
    assert {path.name for path in tmp_path.iterdir()} == set(answers)
