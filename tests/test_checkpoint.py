"""Checkpoints: whole or absent, the previous one safe until the new one stands, exact when read back."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from milepost.checkpoint import damage, latest, load_checkpoint, path_of, prune, save_checkpoint, steps
from milepost.disk import StoreError


def write_model(folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights" * 100)


def save(folder: Path, step: int, **options) -> Path:
    tensors = {"masters": {"w": torch.full((3, 4), float(step))}, "num_steps": step}
    return save_checkpoint(folder, step, write_policy=options.pop("write_policy", write_model), tensors=tensors,
                           state={"seen": step}, **options)  # fmt: skip


def test_layout_and_manifest(tmp_path: Path) -> None:
    path = save(tmp_path, 120)
    assert path == tmp_path / "step-000120"
    names = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
    assert names == {"model/config.json", "model/model.safetensors", "masters.pt", "state.json", "manifest.json"}
    assert damage(path, thorough=True) is None


def test_optimizer_and_state_come_back_exactly(tmp_path: Path) -> None:
    # case G6: Adam moments, learning rate and step equal the saved ones; the next update equals the unbroken one
    def trained():
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(5, 3))
        optimizer = torch.optim.AdamW([weight], lr=0.01, betas=(0.9, 0.95))
        for _ in range(3):
            one_step(weight, optimizer)
        return weight, optimizer

    def one_step(weight, optimizer):
        optimizer.zero_grad()
        (weight.sin() ** 2).sum().backward()
        optimizer.step()

    weight, optimizer = trained()
    generator = torch.Generator().manual_seed(7)
    torch.rand(3, generator=generator)
    state = {"position": 17, "third": 1 / 3, "names": ["a", None], "flag": True}
    tensors = {"masters": {"w": weight.detach()}, "optimizer": optimizer.state_dict(), "rng": {"g": generator.get_state()},
               "num_steps": 3, "kind": "packed"}  # fmt: skip
    path = save_checkpoint(tmp_path, 3, write_policy=write_model, tensors=tensors, state=state)
    one_step(weight, optimizer)

    back, state_back = load_checkpoint(path)
    assert state_back == state
    assert (back["num_steps"], back["kind"]) == (3, "packed")
    again = torch.nn.Parameter(back["masters"]["w"])
    resumed = torch.optim.AdamW([again], lr=0.5)
    resumed.load_state_dict(back["optimizer"])
    assert resumed.param_groups[0]["lr"] == 0.01
    one_step(again, resumed)
    assert torch.equal(again, weight)
    # case G5: the generator's state is the one saved, so the next draw is the same
    assert torch.equal(torch.rand(3, generator=_generator(back["rng"]["g"])), torch.rand(3, generator=generator))


def _generator(state: torch.Tensor) -> torch.Generator:
    generator = torch.Generator()
    generator.set_state(state)
    return generator


def test_code_in_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"masters\.w\[1\] is a"):
        save_checkpoint(tmp_path, 1, write_policy=write_model, tensors={"masters": {"w": [1, print]}}, state={})
    assert steps(tmp_path) == []


@pytest.mark.parametrize(
    ("state", "words"),
    [({"scores": {3: 0.5}}, r"state\.scores has the key 3"), ({"x": [object()]}, r"state\.x\[0\] is a object")],
)
def test_state_that_json_would_change_is_refused(tmp_path: Path, state: dict, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        save_checkpoint(tmp_path, 1, write_policy=write_model, tensors={}, state=state)


def test_retention_keeps_the_latest_and_the_best(tmp_path: Path) -> None:
    # case G11: success [0.2, 0.9, 0.4]: the best is the 2nd; retention of 1 keeps it, plus the last
    best = None
    success = {1: 0.2, 2: 0.9, 3: 0.4}
    for step, value in success.items():
        best = step if best is None or value > success[best] else best
        save(tmp_path, step, keep=1, best=best)
    assert steps(tmp_path) == [2, 3]
    save(tmp_path, 4, keep=2, best=2)
    save(tmp_path, 5, keep=2, best=2)
    assert steps(tmp_path) == [2, 4, 5]
    assert path_of(tmp_path, 2).name == "step-000002"
    with pytest.raises(StoreError, match="no complete checkpoint of step 3; it has: 2, 4, 5"):
        path_of(tmp_path, 3)


@pytest.mark.parametrize("how", ["flip", "cut", "remove", "manifest", "unfinished"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, how: str) -> None:
    save(tmp_path, 1, keep=2)
    path = save(tmp_path, 2, keep=2)
    weights = path / "model" / "model.safetensors"
    data = weights.read_bytes()
    match how:
        case "flip":
            weights.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
        case "cut":
            weights.write_bytes(data[:-1])
        case "remove":
            weights.unlink()
        case "manifest":
            (path / "manifest.json").write_text("{")
        case "unfinished":
            (path / "manifest.json").unlink()
    said: list[str] = []
    assert latest(tmp_path, said.append) == tmp_path / "step-000001"
    assert len(said) == 1
    assert "step-000002 is ignored" in said[0]
    with pytest.raises(StoreError, match="step-000002 cannot be used"):
        load_checkpoint(path)
    with pytest.warns(UserWarning, match="step-000002 is ignored"):
        latest(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    assert latest(tmp_path / "none") is None
    assert steps(tmp_path / "none") == []


def test_a_damaged_newest_never_costs_the_last_whole_one(tmp_path: Path) -> None:
    save(tmp_path, 1)
    path = save(tmp_path, 2, keep=2)
    (path / "state.json").unlink()
    prune(tmp_path, keep=1)
    assert steps(tmp_path) == [1]
    save(tmp_path, 3)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["step-000003"]


def killed_at(call: int, folder: Path, step: int) -> bool:
    """Saves in a child that is killed at its n-th call that touches the disk. True if the child got through alive."""
    child = os.fork()
    if child == 0:
        counter = [0]

        def deadly(function):
            def wrapped(*arguments, **options):
                counter[0] += 1
                if counter[0] == call:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments, **options)

            return wrapped

        for module, name in ((os, "fsync"), (os, "rename"), (os, "mkdir"), (os, "unlink"), (os, "rmdir"), (torch, "save"),
                             (Path, "write_text")):  # fmt: skip
            setattr(module, name, deadly(getattr(module, name)))
        try:
            save(folder, step, keep=1)
            os._exit(0)
        except BaseException:
            os._exit(3)
    _, status = os.waitpid(child, 0)
    assert not (os.WIFEXITED(status) and os.WEXITSTATUS(status) == 3), "the child raised"
    return os.WIFEXITED(status)


@pytest.mark.parametrize("again", [False, True], ids=["next step", "same step again"])
def test_killed_anywhere_one_whole_checkpoint_is_found(tmp_path: Path, again: bool) -> None:
    # case G10: kill -9 during save: resume uses the previous complete one
    step, found = (1 if again else 2), set()
    for call in range(1, 200):
        folder = tmp_path / str(call)
        save(folder, 1)
        alive = killed_at(call, folder, step)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing half-written is even looked at
            path = latest(folder)
        assert path is not None
        tensors, _ = load_checkpoint(path)
        assert tensors["num_steps"] in (1, step)
        found.add(tensors["num_steps"])
        save(folder, 3)  # the next save cleans up
        assert [p.name for p in folder.iterdir()] == ["step-000003"]
        shutil.rmtree(folder)
        if alive:
            break
    assert alive
    assert call > 15
    assert found == {1, step}


def plain_file(path: Path) -> None:
    path.mkdir()
    (path / "model.safetensors").write_bytes(bytes(30_000))


def safetensors_file(path: Path) -> None:
    path.mkdir()
    save_file({"w": torch.zeros(30_000)}, path / "model.safetensors")


@pytest.mark.parametrize(
    ("writer", "size"),
    [(plain_file, 1), (safetensors_file, 1), (write_model, 30_000)],
    ids=["file", "safetensors", "torch"],
)
def test_a_full_disk_leaves_the_old_one_and_says_so(tmp_path: Path, writer, size: int) -> None:
    # case G10: no space during save: the old one intact, the run reports. A limit on file size stands for the full disk.
    folder, said = tmp_path / "checkpoints", tmp_path / "said"
    save(folder, 1)
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            save_checkpoint(folder, 2, write_policy=writer, tensors={"masters": {"w": torch.zeros(size)}}, state={})
        except BaseException as error:
            said.write_text(f"{type(error).__name__}: {error}")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    message = said.read_text()
    assert message.startswith("StoreError: the checkpoint of step 2 could not be written"), message
    assert "the one of step 1 is intact" in message
    assert "\n" not in message
    assert [path.name for path in folder.iterdir()] == ["step-000001"]
    assert damage(folder / "step-000001", thorough=True) is None


def test_a_mistake_in_the_writer_is_not_called_a_full_disk(tmp_path: Path) -> None:
    def broken(path: Path) -> None:
        raise KeyError("lm_head")

    save(tmp_path, 1)
    with pytest.raises(KeyError, match="lm_head"):
        save(tmp_path, 2, write_policy=broken)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]
