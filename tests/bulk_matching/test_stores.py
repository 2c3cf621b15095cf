"""Runs into and from object stores: fsspec's in memory, and a server on this machine that speaks S3."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import deepmatching as dm
from deepmatching.bulk_matching import Progress, RunFolder, ShardReport, exhaustive_pairs, list_images
from deepmatching.bulk_matching.status import read_status
from deepmatching.errors import DeepMatchingError
from deepmatching.io.addresses import list_address, read_address, write_address
from helpers.bulk_runs import SETTINGS, shards
from helpers.processes import run, started


@pytest.fixture
def bucket(photos: Path) -> Iterator[str]:
    """Copy the photographs to ``photos`` in an empty store in memory."""
    from fsspec.implementations.memory import MemoryFileSystem

    _copy(photos, "memory://bucket/photos")
    yield "memory://bucket"
    MemoryFileSystem.store.clear()


def _copy(photos: Path, address: str) -> None:
    for name in list_images(photos):
        write_address(f"{address}/{name}", (photos / name).read_bytes())


def test_a_run_from_and_into_a_store_has_the_bytes_of_one_on_a_disk(photos: Path, tmp_path: Path, bucket: str) -> None:
    expected = dm.bulk(exhaustive_pairs(photos), photos, tmp_path / "run", **SETTINGS)
    pairs = exhaustive_pairs(f"{bucket}/photos")
    assert pairs == exhaustive_pairs(photos)
    stopped: list[int] = []

    def stop(_: Progress, report: ShardReport) -> None:
        stopped.append(report.number)
        if len(stopped) == 4:
            raise KeyboardInterrupt

    out = f"{bucket}/run"
    with pytest.raises(KeyboardInterrupt):
        dm.bulk(pairs, f"{bucket}/photos", out, on_shard=stop, **SETTINGS)
    assert read_status(out).state == "stopped"
    found = dm.bulk(pairs, f"{bucket}/photos", out, on_shard=stop, **SETTINGS)
    assert len(stopped) == len(set(stopped))  # none was matched twice
    assert _shards(out) == shards(expected)
    assert found.plan.images == "memory://bucket/photos" and out in repr(found)
    assert found.failures() == {} and len(list(RunFolder(out))) == 10


def _shards(out: str) -> dict[str, bytes]:
    return {name: read_address(f"{out}/shards/{name}") for name in list_address(f"{out}/shards")}


def test_images_of_a_store_that_have_changed_are_matched_again(photos: Path, bucket: str) -> None:
    pairs, images, out = exhaustive_pairs(photos), f"{bucket}/photos", f"{bucket}/run"
    dm.bulk(pairs, images, out, **SETTINGS)
    reports: list[ShardReport] = []
    dm.bulk(pairs, images, out, on_shard=lambda _, report: reports.append(report), **SETTINGS)
    assert reports == []
    write_address(f"{images}/wide.png", (photos / "photo 1.png").read_bytes())
    dm.bulk(pairs, images, out, on_shard=lambda _, report: reports.append(report), **SETTINGS)
    assert len(reports) == 4


def test_flow_and_a_restart_in_a_store(photos: Path, bucket: str) -> None:
    pairs, out = exhaustive_pairs(photos)[:2], f"{bucket}/run"
    dm.bulk(pairs, f"{bucket}/photos", out, flow=True, **SETTINGS)
    assert sum(name.endswith(".flo") for name in list_address(out)) == 2
    found = dm.bulk(pairs[:1], f"{bucket}/photos", out, restart=True, **SETTINGS)
    assert len(found) == len(found.done) == 1


def test_pictures_of_runs_and_hidden_files_in_a_store_are_not_images(photos: Path, bucket: str) -> None:
    for name in ("run/run.json", "run/flow/a.png", ".hidden/a.png", ".b.png", "notes.txt"):
        write_address(f"{bucket}/photos/{name}", b"content")
    assert list_images(f"{bucket}/photos") == list_images(photos)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ("memory://nowhere/photos", "memory://nowhere/photos"),
        ("file:///photos", "without file://"),
        ("nothing://bucket/photos", "nothing://bucket/photos"),
    ],
)
def test_an_address_without_images_is_one_sentence(images: str, words: str, bucket: str) -> None:
    with pytest.raises(DeepMatchingError, match=words):
        exhaustive_pairs(images)
    with pytest.raises(DeepMatchingError, match=words):
        dm.bulk([("a.png", "b.png")], images, f"{bucket}/run", **SETTINGS)
    assert list_address(f"{bucket}/run") == {}


def test_a_store_whose_package_is_missing_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    def missing(_: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    with pytest.raises(DeepMatchingError, match="pip install s3fs"):
        dm.bulk([("a.png", "b.png")], tmp_path, "s3://bucket/run", **SETTINGS)


def test_colmap_asks_for_images_on_a_disk(
    photos: Path, tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deepmatching.commands.runs import Choices

    found = dm.bulk(exhaustive_pairs(photos)[:2], f"{bucket}/photos", f"{bucket}/run", **SETTINGS)
    with pytest.raises(DeepMatchingError, match="not from 'memory://bucket/photos'"):
        Choices(images=None).images_of(found)
    assert Choices(images=photos).images_of(found) == photos


@pytest.fixture
def s3(photos: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Start a server that speaks S3, with the photographs in a bucket."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_for(int(port))
            import s3fs

            s3fs.S3FileSystem.clear_instance_cache()  # of another server
            s3fs.S3FileSystem(use_listings_cache=False).mkdir("bucket")
            _copy(photos, "s3://bucket/photos")
            yield "s3://bucket"
        finally:
            server.kill()


def _wait_for(port: int) -> None:
    for _ in range(600):
        with socket.socket() as connection:
            if connection.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.skip("the server does not start here")


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no signal 9")
def test_a_command_that_is_killed_and_run_again_ends_with_the_same_bytes_in_s3(
    photos: Path, tmp_path: Path, s3: str
) -> None:
    command: list[object] = ["--exhaustive", "--model", "hog", "--radius", 32, "--device", "cpu", "--out"]
    assert run("bulk", photos, *command, tmp_path / "run").returncode == 0
    expected = shards(tmp_path / "run")
    out = f"{s3}/run"
    for wanted in (1, 4):
        with started("bulk", f"{s3}/photos", *command, out) as process:
            while process.poll() is None and len(_shards(out)) < wanted:
                time.sleep(0.01)
    result = run("bulk", f"{s3}/photos", *command, out)
    assert result.returncode == 0 and f"wrote {out}" in result.stderr
    assert _shards(out) == expected
    assert "10 of 10 finished" in run("bulk", "--status", out).stdout
    exported = run("export", out, "--hloc", tmp_path / "feats.h5", tmp_path / "matches.h5")
    assert exported.returncode == 0, exported.stderr


@pytest.mark.slow
def test_a_missing_bucket_and_missing_credentials_are_one_sentence(
    photos: Path, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ("--exhaustive", "--model", "hog", "--device", "cpu", "--out")
    cases: list[tuple[object, ...]] = [
        ("bulk", photos, *common, "s3://nowhere/run"),
        ("bulk", "s3://nowhere/photos", *common, "s3://bucket/run"),
    ]
    results = [run(*case) for case in cases]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    results += [run(*case) for case in [("bulk", photos, *common, "s3://bucket/run"), *cases]]
    for result in results:
        lines = result.stderr.strip().splitlines()
        assert result.returncode == 2 and len(lines) == 1 and "s3://" in lines[0], result.stderr
