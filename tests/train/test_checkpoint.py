"""Checkpoints: what was saved comes back bit by bit; what was torn, cut or flipped never does."""

from __future__ import annotations

import errno
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
import warnings
import zlib
from collections import Counter, OrderedDict, defaultdict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="checkpoints are of torch states; install fairlead[train]")

from fairlead.core.errors import BackendError, InvalidSpec  # noqa: E402  # only where there is torch
from fairlead.train.checkpoint import CHUNK, Store, signature_of  # noqa: E402
from fairlead.train.parts import own  # noqa: E402
from fairlead.train.tree import lay_out, read  # noqa: E402


def same(a: Any, b: Any) -> bool:
    """Equal in type and, for numbers and tensors, in every bit."""
    if isinstance(a, torch.nn.Parameter):
        a = a.detach()
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(map(repr, a)) == list(map(repr, b)) and all(map(same, a.values(), b.values()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b) or (a != a and b != b)


def round_trip(tmp_path: Path, state: dict[str, Any]) -> dict[str, Any]:
    store = Store(tmp_path)
    store.save(state, step=1)
    loaded = store.latest()
    assert loaded is not None
    return loaded.state


def latest_step(directory: Path) -> int | None:
    loaded = Store(directory).latest()
    return None if loaded is None else loaded.step


def model_and_gradients() -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    model(torch.randn(8, 5)).sum().backward()
    return model


OPTIMISERS = ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adadelta", "NAdam", "RAdam", "Adamax", "ASGD", "Rprop"]


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_model_and_its_optimiser_go_on_as_if_nothing_had_happened(tmp_path: Path, name: str) -> None:
    options = {"lr": 0.1} | ({"momentum": 0.9} if name == "SGD" else {})
    model = model_and_gradients()
    optimiser = getattr(torch.optim, name)(model.parameters(), **options)
    optimiser.step()
    state = {"model": model.state_dict(), "optimizer": optimiser.state_dict()}
    loaded = round_trip(tmp_path, state)
    assert same(state, loaded)
    assert loaded["model"]._metadata == state["model"]._metadata

    other = model_and_gradients()
    resumed = getattr(torch.optim, name)(other.parameters(), **options)
    other.load_state_dict(loaded["model"])
    resumed.load_state_dict(loaded["optimizer"])
    for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
        mine.grad.copy_(theirs.grad)
    optimiser.step()
    resumed.step()
    assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))


def test_lbfgs_and_its_history_round_trip(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.randn(6))
    optimiser = torch.optim.LBFGS([weight], max_iter=3)

    def closure() -> Any:
        optimiser.zero_grad()
        loss = (weight**4).sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    assert same(optimiser.state_dict(), round_trip(tmp_path, {"o": optimiser.state_dict()})["o"])


def schedulers(optimiser: Any) -> list[Any]:
    kinds = torch.optim.lr_scheduler
    return [
        kinds.StepLR(optimiser, 2),
        kinds.MultiStepLR(optimiser, [1, 3, 3]),
        kinds.LambdaLR(optimiser, lambda epoch: 0.9**epoch),
        kinds.CosineAnnealingWarmRestarts(optimiser, 3),
        kinds.OneCycleLR(optimiser, 0.1, 10),
        kinds.CyclicLR(optimiser, 0.1, 0.2),
        kinds.PolynomialLR(optimiser),
        kinds.SequentialLR(optimiser, [kinds.ConstantLR(optimiser), kinds.ExponentialLR(optimiser, 0.9)], [2]),
        kinds.ChainedScheduler([kinds.LinearLR(optimiser), kinds.CosineAnnealingLR(optimiser, 5)]),
        kinds.ReduceLROnPlateau(optimiser),
    ]


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch wants optimiser.step() before scheduler.step()
def test_every_learning_rate_schedule_round_trips(tmp_path: Path) -> None:
    for scheduler in schedulers(torch.optim.SGD(model_and_gradients().parameters(), lr=0.1, momentum=0.9)):
        scheduler.step(*[1.5] * isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau))
        state = scheduler.state_dict()
        assert same(state, round_trip(tmp_path, {"s": state})["s"]), type(scheduler)


def test_random_number_generators_and_the_gradient_scaler_go_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    generator, scaler = np.random.default_rng(3), torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(1))
    state = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "generator": generator.bit_generator.state,
        "torch": torch.get_rng_state(),
        "scaler": scaler.state_dict(),
    }
    before = random.random(), np.random.random(), generator.random(), torch.rand(3)
    loaded = round_trip(tmp_path, state)
    assert same(state, loaded)
    random.setstate(loaded["python"])
    np.random.set_state(loaded["numpy"])
    generator.bit_generator.state = loaded["generator"]
    torch.set_rng_state(loaded["torch"])
    scaler.load_state_dict(loaded["scaler"])
    assert before[:3] == (random.random(), np.random.random(), generator.random())
    assert torch.equal(before[3], torch.rand(3))


def test_every_kind_of_leaf_comes_back_as_it_was(tmp_path: Path) -> None:
    state = {
        "numbers": [0, -1, 2**200, True, None, 0.1, -0.0, float("inf"), float("-inf"), float("nan"), 5e-324],
        "text": ["", "ü", "\ud800", "\0"],
        "bytes": [b"", b"\0\xff" * 50],
        "tuple": ((), (1, (2, [3]))),
        "dict": {1: "int", "1": "str", (2, "a"): "tuple", None: "none", 0.5: "float"},
        "ordered": OrderedDict(b=1, a=2),
        "counter": Counter("aab"),
        "empty": {},
        "arrays": [np.arange(6).reshape(2, 3), np.array("text"), np.zeros((0, 3)), np.float64(0.1), np.int8(3)],
        "endian": np.arange(3, dtype=">i4"),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    }
    assert same(state, round_trip(tmp_path, state))


@pytest.mark.parametrize(
    "dtype", ["float64", "float16", "bfloat16", "int64", "uint8", "bool", "complex64", "float8_e4m3fn", "uint16"]
)
def test_every_dtype_and_shape_of_tensor_comes_back_as_it_was(tmp_path: Path, dtype: str) -> None:
    base = torch.arange(24).to(getattr(torch, dtype))
    tensors = {
        "scalar": base[3],
        "empty": base[:0].reshape(0, 4),
        "cube": base.reshape(2, 3, 4),
        "transposed": base.reshape(4, 6).t(),
        "gaps": base.reshape(4, 6)[:, ::2],
        "expanded": base[:1].expand(3),
    }
    loaded = round_trip(tmp_path, tensors)
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].shape == tensor.shape
        assert torch.equal(loaded[name].to(torch.complex128), tensor.to(torch.complex128)), name


def test_memory_order_conjugates_and_tied_weights_survive(tmp_path: Path) -> None:
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    waves = torch.randn(3, dtype=torch.complex64)
    loaded = round_trip(tmp_path, {"image": image, "waves": waves, "conj": waves.conj(), "tied": [image, image]})
    assert torch.equal(loaded["image"], image)
    assert loaded["image"].stride() == image.stride()
    assert torch.equal(loaded["waves"], waves)
    assert torch.equal(loaded["conj"], waves.conj())
    assert loaded["tied"][0] is loaded["image"]


def test_a_loaded_tensor_can_be_written_to_without_changing_the_file(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save({"a": torch.zeros(3), "b": np.zeros(3)}, step=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of buffers that must not be written
        loaded = store.latest()
    assert loaded is not None
    loaded.state["a"] += 1
    loaded.state["b"] += 1
    again = store.latest()
    assert again is not None
    assert again.state["a"].sum() == 0


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    "leaf",
    [object(), lambda: 0, {1, 2}, Pair(1, 2), defaultdict(list), np.array([object()]), torch.float32, 1j, {b"k": 1}],
)
def test_a_leaf_that_cannot_be_saved_is_refused_by_its_path(tmp_path: Path, leaf: Any) -> None:
    state = {"optimizer": {"param_groups": [{"foo": leaf}]}}
    with pytest.raises(InvalidSpec, match=r"optimizer\.param_groups\[0\]\.foo is a .*which cannot be saved"):
        Store(tmp_path).save_async(state, step=1)
    assert list(tmp_path.iterdir()) == []


def test_tensors_without_plain_bytes_are_refused_by_their_path(tmp_path: Path) -> None:
    for tensor in (torch.eye(2).to_sparse(), torch.empty(2, device="meta")):
        with pytest.raises(InvalidSpec, match=r"model\.w is a .* only dense ones"):
            Store(tmp_path).save({"model": {"w": tensor}}, step=1)


def two_checkpoints(directory: Path) -> Path:
    """Steps 1 and 2; the path of the latter."""
    store = Store(directory)
    store.save({"weights": torch.ones(40), "name": "one"}, step=1)
    return store.save({"weights": torch.ones(40), "name": "two"}, step=2)


def expect_the_older(directory: Path, damaged: Path) -> None:
    with pytest.warns(UserWarning, match=f"{damaged.name} is damaged"):
        loaded = Store(directory).latest()
    assert loaded is not None
    assert loaded.state["name"] == "one"


def test_a_file_cut_anywhere_is_never_loaded(tmp_path: Path) -> None:
    path = two_checkpoints(tmp_path)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        expect_the_older(tmp_path, path)
    path.write_bytes(whole + b"\0")
    expect_the_older(tmp_path, path)
    path.write_bytes(whole)
    assert latest_step(tmp_path) == 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(data=st.data())
def test_a_file_with_flipped_bits_is_never_loaded(tmp_path: Path, data: st.DataObject) -> None:
    for old in tmp_path.iterdir():
        old.unlink()
    path = two_checkpoints(tmp_path)
    content = bytearray(path.read_bytes())
    for bit in data.draw(st.sets(st.integers(0, 8 * len(content) - 1), min_size=1, max_size=3)):
        content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    expect_the_older(tmp_path, path)


def test_a_flipped_byte_is_found_in_every_chunk_of_a_large_file(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save({"name": "one"}, step=1)
    path = store.save({"weights": torch.zeros(5 * CHUNK // 8)}, step=2)  # two chunks and a half
    assert latest_step(tmp_path) == 2
    for place in (CHUNK - 1, CHUNK, 2 * CHUNK + 5):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"\1")
            file.flush()
            expect_the_older(tmp_path, path)
            file.seek(place)
            file.write(b"\0")
    assert latest_step(tmp_path) == 2


def test_without_any_intact_checkpoint_there_is_none(tmp_path: Path) -> None:
    assert Store(tmp_path / "new").latest() is None
    Store(tmp_path).save({}, step=1).write_bytes(b"")
    with pytest.warns(UserWarning, match="it is too short"):
        assert Store(tmp_path).latest() is None


def test_a_damaged_file_takes_no_place_among_those_kept(tmp_path: Path) -> None:
    path = two_checkpoints(tmp_path)
    path.write_bytes(b"")
    store = Store(tmp_path)
    with pytest.warns(UserWarning, match="damaged"):
        store.latest()
    store.save({}, step=2)
    assert [file.name for file in sorted(tmp_path.glob("*.ckpt"))] == ["00000001-step-1.ckpt", "00000003-step-2.ckpt"]


def test_only_the_last_written_are_kept_whatever_their_step(tmp_path: Path) -> None:
    store = Store(tmp_path, keep=2)
    for step in (7, 100, 8, 9):
        store.save({}, step=step)
    assert len(list(tmp_path.glob("*.ckpt"))) == 2
    assert latest_step(tmp_path) == 9
    assert store.last_save_s is not None
    assert store.last_save_s > 0


def test_a_loaded_state_outlives_its_file(tmp_path: Path) -> None:
    store = Store(tmp_path, keep=1)
    store.save({"a": torch.arange(5000)}, step=1)
    loaded = store.latest()
    store.save({}, step=2)
    assert loaded is not None
    assert not loaded.path.exists()
    assert torch.equal(loaded.state["a"], torch.arange(5000))


def test_a_newer_format_asks_for_an_upgrade_and_a_foreign_file_is_named(tmp_path: Path) -> None:
    path = Store(tmp_path).save({}, step=1)
    for prefix, message in (
        (b"FAIRCKPT\2\0\0\0", "newer Fairlead"),
        (b"SOMEBODY\1\0\0\0", "not a Fairlead checkpoint"),
    ):
        body = prefix + bytes(100)
        seal = struct.pack("<IQ", zlib.crc32(body), len(body))
        path.write_bytes(body + seal + struct.pack("<I", zlib.crc32(seal)))
        with pytest.raises(InvalidSpec, match=message):
            Store(tmp_path).latest()


def test_a_reader_overtaken_by_the_writer_looks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Store(tmp_path, keep=1)
    writer.save({}, step=1)
    list_now = os.listdir

    def list_then_save(directory: Path) -> list[str]:
        names = list_now(directory)
        monkeypatch.undo()
        writer.save({}, step=2)  # deletes what was just listed
        return names

    monkeypatch.setattr(os, "listdir", list_then_save)
    assert latest_step(tmp_path) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": torch.zeros(3), "b": torch.zeros(4, 3)}, r"b is \[2, 3\] float32, here it is \[4, 3\] float32"),
        ({"a": torch.zeros(3).half(), "b": torch.zeros(2, 3)}, r"a is \[3\] float32, here it is \[3\] float16"),
        ({"a": torch.zeros(3)}, r"b is \[2, 3\] float32, here it is absent"),
        ({"a": torch.zeros(3), "c": torch.zeros(1)}, r"c is absent, here it is \[1\] float32"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_by_the_first_difference(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    model = {"a": torch.zeros(3), "b": torch.zeros(2, 3)}
    Store(tmp_path, signature=signature_of(model)).save({"model": model}, step=1)
    assert Store(tmp_path, signature=signature_of(model)).latest() is not None
    assert Store(tmp_path).latest() is not None
    with pytest.raises(InvalidSpec, match=message):
        Store(tmp_path, signature=signature_of(change)).latest()


class SlowDisk:
    """Holds every fsync until told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        fsync = os.fsync

        def slow(descriptor: int) -> None:
            self.reached.set()
            assert self.go_on.wait(10)
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", slow)


def test_a_newer_request_replaces_one_that_has_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, store = SlowDisk(monkeypatch), Store(tmp_path, keep=9)
    store.save_async({}, step=1)
    assert disk.reached.wait(10)
    for step in (2, 3, 4):
        store.save_async({}, step=step)
    assert store.busy
    assert store.latest() is None
    disk.go_on.set()
    store.wait()
    assert not store.busy
    assert [file.name for file in sorted(tmp_path.glob("*.ckpt"))] == ["00000001-step-1.ckpt", "00000002-step-4.ckpt"]


def test_an_interpreter_that_exits_finishes_what_it_saves(tmp_path: Path) -> None:
    script = f"""
import torch
from fairlead.train.checkpoint import Store
Store({str(tmp_path)!r}).save_async({{"a": torch.ones(1000000)}}, step=5)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    assert latest_step(tmp_path) == 5


def fill_the_disk(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Writes are short, and fail once so many bytes are on the disk."""
    write, room = os.write, after

    def writes(descriptor: int, data: memoryview) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = write(descriptor, data[: min(room, 50)])
        room -= done
        return done

    monkeypatch.setattr(os, "write", writes)


@pytest.mark.parametrize("after", [0, 10, 300])
def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    two_checkpoints(tmp_path)
    before = sorted(tmp_path.iterdir())
    with monkeypatch.context() as patch:
        fill_the_disk(patch, after)
        with pytest.raises(BackendError, match=r"cannot save step 3 in .*No space left"):
            Store(tmp_path).save({"a": torch.ones(100)}, step=3)
    assert sorted(tmp_path.iterdir()) == before
    assert latest_step(tmp_path) == 2


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_the_disk(monkeypatch, 10**6)
    assert torch.equal(round_trip(tmp_path, {"a": torch.arange(100)})["a"], torch.arange(100))


def test_an_error_in_the_background_is_raised_once_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    with monkeypatch.context() as patch:
        fill_the_disk(patch, 0)
        store.save_async({}, step=1)
        while store.busy:
            time.sleep(0.001)
    with pytest.raises(BackendError, match="cannot save step 1"):
        store.save_async({}, step=2)
    store.save_async({}, step=3)
    store.wait()
    assert latest_step(tmp_path) == 3


def test_a_directory_without_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_checkpoints(tmp_path)

    def refuse(*_: object) -> int:  # root may write anywhere, so the mode of the directory would prove nothing
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(BackendError, match=f"in {tmp_path}: Permission denied"):
            Store(tmp_path).save({}, step=3)
    assert latest_step(tmp_path) == 2


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidSpec, match="is a file; checkpoints need a directory"):
        Store(tmp_path / "file")
    with pytest.raises(BackendError, match="Not a directory"):
        Store(tmp_path / "file" / "below").save({}, step=1)


KILLED = """
import sys, torch
from fairlead.train.checkpoint import Store
store = Store(sys.argv[1])
step = 0 if (last := store.latest()) is None else last.step
while True:
    step += 1
    store.save({"a": torch.full((500_000,), float(step)), "step": step}, step=step)
    print(step, flush=True)
"""


def test_a_writer_killed_at_any_moment_leaves_a_complete_checkpoint(tmp_path: Path) -> None:
    moment = random.Random(0)
    reached = 0
    for _ in range(4):
        writer = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(moment.uniform(0, 0.1))
        os.kill(writer.pid, signal.SIGKILL)
        reported = [int(line) for line in writer.stdout.read().splitlines()]
        writer.wait(10)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loaded = Store(tmp_path).latest()
        assert loaded is not None
        assert loaded.step == loaded.state["step"] > reached
        assert loaded.step >= max(reported, default=0)
        assert bool((loaded.state["a"] == loaded.step).all())
        reached = loaded.step
    Store(tmp_path).save({}, step=reached + 1)
    assert len(list(tmp_path.glob("*.ckpt"))) == 2
    assert not list(tmp_path.glob(".*.draft")), "drafts of the killed are removed"


def test_writers_with_other_numbers_write_their_tensors_to_the_same_places() -> None:
    """As those who hand over a state do: each has measured other times, and so has a header of another length."""
    tensors = {str(place): torch.arange(100.0) + place for place in range(8)}
    memory = bytearray(1 << 16)
    for part, told in enumerate(["short", "long" * 100]):
        lay_out({"told": told, "tensors": tensors}).write(memory, part=part, parts=2)
    found = read(memory)
    assert found["told"] == "short"
    assert all(torch.equal(found["tensors"][name], tensor) for name, tensor in tensors.items())


# -- the directory -----------------------------------------------------------------------------------------------------

HOLDER = """
import sys
from fairlead.train.checkpoint import Store
Store(sys.argv[1]).occupy()
print("ours", flush=True)
sys.stdin.read()
"""


def test_a_directory_in_which_another_job_saves_is_refused_and_free_when_that_has_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.train.checkpoint.LOCK_S", 0.2)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ours\n"
        with pytest.raises(InvalidSpec, match=rf"another job \(process {holder.pid} on .*\) saves there, and did not"):
            Store(tmp_path).occupy()
        with pytest.raises(BackendError, match="another job"):
            Store(tmp_path).save({}, step=1)
        holder.kill()
    Store(tmp_path).save({}, step=1)


def test_a_directory_that_cannot_be_written_to_is_found_before_there_is_anything_to_lose(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidSpec, match=r"checkpoints: cannot write in .*file/there: Not a directory; give access"):
        Store(tmp_path / "file" / "there").check()
    Store(tmp_path / "a" / "b").check()
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_copy_to_be_saved_in_the_background_keeps_the_versions_of_modules() -> None:
    state = torch.nn.BatchNorm1d(2).state_dict()
    copied = own(state)
    assert copied._metadata == state._metadata
    assert copied["weight"] is not state["weight"]
