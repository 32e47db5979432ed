"""Engine children that die, hang or talk nonsense, and nodes that vanish: real processes, real signals."""

import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import trio

from p2pmesh.adapters.llama.launcher import LauncherOptions, LlamaEngineLauncher
from p2pmesh.adapters.llama.probe import DEFAULT_SPIN_COUNT, ProbeRequest, probe
from p2pmesh.base.errors import EngineError, ErrorCode
from p2pmesh.core.devices import Device, DeviceChoice
from p2pmesh.wire.engine import EngineKind, encode_message, frame_message
from p2pmesh.wire.stage import FrameKind
from tests.adapters.llama.dialogue import Dialogue

ROOT = Path(__file__).resolve().parents[3]


def _children() -> list[str]:
    """Process ids of this process's children, zombies too."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


async def _receive_after_signal(launcher, spec, number) -> None:
    async with launcher.launch(spec) as engine:
        engine._child.process.send_signal(number)
        await engine.receive()


@pytest.mark.parametrize(
    ("number", "word"), [(signal.SIGKILL, "out of memory"), (signal.SIGABRT, "SIGABRT"), (signal.SIGILL, "rebuild")]
)
async def test_a_killed_child_is_reported_with_its_cause(launcher, make_spec, number, word):
    with pytest.raises(EngineError, match=word) as caught:
        await _receive_after_signal(launcher, make_spec(), number)
    assert caught.value.code is ErrorCode.ENGINE_CRASHED
    assert number.name in caught.value.message


async def test_everything_fails_with_the_cause_afterwards(launcher, make_spec):
    async with launcher.launch(make_spec()) as engine:
        engine._child.process.send_signal(signal.SIGABRT)
        with pytest.raises(EngineError, match="SIGABRT"):
            await engine.receive()
        with pytest.raises(EngineError, match="SIGABRT"):
            await engine.send(Dialogue([engine]).frame(FrameKind.END))
        with pytest.raises(EngineError, match="SIGABRT"):
            await engine.tokenize("a", add_special=False, parse_special=False)


async def test_a_stopped_child_is_lost(cache_folder, make_spec):
    await _assert_lost(LauncherOptions(str(cache_folder), is_probing=False), make_spec(), "is stopped")


async def test_a_stopped_child_is_found_by_its_silence_where_the_kernel_tells_nothing(cache_folder, make_spec):
    options = LauncherOptions(str(cache_folder), is_probing=False, stopped_seconds=60)
    await _assert_lost(options, make_spec(), "no sign of life")


async def _assert_lost(options, spec, words) -> None:
    with pytest.raises(EngineError, match=words) as caught:
        await _receive_after_signal(LlamaEngineLauncher(options), spec, signal.SIGSTOP)
    assert caught.value.code is ErrorCode.ENGINE_UNRESPONSIVE
    assert _children() == []


@pytest.mark.parametrize(
    "nonsense",
    [
        frame_message(EngineKind.FRAME, b"no frame"),
        frame_message(EngineKind.CALL, b"\xc1"),
        (2**31).to_bytes(4, "little"),
        b"\x01\x00\x00\x00\xff",
        encode_message(EngineKind.LOADED, {}),
    ],
)
async def test_nonsense_costs_the_child_not_the_node(launcher, make_spec, nonsense):
    async def send_nonsense() -> None:
        async with launcher.launch(make_spec()) as engine:
            await engine._child.link.send(nonsense)
            await engine.receive()

    with pytest.raises(EngineError) as caught:
        await send_nonsense()
    assert caught.value.code is ErrorCode.ENGINE_CRASHED
    assert "status" in caught.value.message


_NODE = textwrap.dedent(
    """
    import sys, trio
    from p2pmesh.adapters.llama.launcher import LauncherOptions, LlamaEngineLauncher
    from p2pmesh.base.ids import LayerRange
    from p2pmesh.ports.engine import EngineSpec
    from p2pmesh.wire.stage import FrameKind, WireDtype
    from tests.adapters.llama.dialogue import Dialogue

    async def main(path, cache):
        options = LauncherOptions(cache, is_probing=False)
        spec = EngineSpec(path, "0" * 64, LayerRange(0, 4), 4, 2048, 1, WireDtype.F32)
        async with LlamaEngineLauncher(options).launch(spec) as engine:
            dialogue = Dialogue([engine])
            await dialogue.begin(2000)
            for start in range(0, 2000, 500):
                await engine.send(dialogue.frame(FrameKind.PREFILL, start, range(3, 259)))
            print(engine._child.process.pid, flush=True)
            await trio.sleep_forever()

    trio.run(main, *sys.argv[1:])
    """
)


def _wait_for_end(pid: int, seconds: float) -> bool:
    descriptor = os.pidfd_open(pid)
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


def test_a_killed_node_leaves_no_child_also_inside_a_step(stage_folder, cache_folder):
    node = subprocess.Popen(
        [sys.executable, "-c", _NODE, str(stage_folder / "llama.gguf"), str(cache_folder)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert node.stdout is not None
    with node.stdout:
        child = int(node.stdout.readline())
        node.kill()
        node.wait()
        assert _wait_for_end(child, 10.0)


def test_the_child_leaves_the_interrupt_to_the_node_and_ends_with_its_socket():
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            child = subprocess.Popen(
                [sys.executable, "-m", "p2pmesh.adapters.llama.child", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                cwd=ROOT,
                stderr=subprocess.DEVNULL,
            )
        assert ours.recv(64)  # a beat: it has started
        child.send_signal(signal.SIGINT)
        assert ours.recv(64)
        assert ours.recv(64)
    assert child.wait(timeout=10) == 0


async def test_no_process_is_left_after_a_failed_load(cache_folder, make_spec, tmp_path):
    spec = make_spec()
    missing = type(spec)(str(tmp_path / "none.gguf"), "0" * 64, spec.layers, 4, 64, 1, spec.wire_dtype)
    with pytest.raises(EngineError, match=r"none\.gguf"):
        async with LlamaEngineLauncher(LauncherOptions(str(cache_folder), is_probing=False)).launch(missing):
            pass
    assert _children() == []


async def test_a_device_that_is_gone_is_named(cache_folder, make_spec):
    choice = DeviceChoice((Device("CUDA9", "", "CUDA", "gpu", 1, 2),), 3)
    options = LauncherOptions(str(cache_folder), choice, is_probing=False)
    with pytest.raises(EngineError, match="the device CUDA9 is gone"):
        async with LlamaEngineLauncher(options).launch(make_spec()):
            pass


def _request(stage_folder: Path, cache: Path) -> ProbeRequest:
    return ProbeRequest(str(stage_folder / "llama.gguf"), "2" * 64, True, True, 2, 0, (), str(cache))


def test_a_trapping_machine_falls_back_and_remembers(stage_folder, tmp_path):
    environment = os.environ | {"P2PMESH_PROBE_TRAP": "1", "PYTHONPATH": str(ROOT)}
    findings = probe(_request(stage_folder, tmp_path), environment)
    assert not findings.use_extra_buffers
    assert "SIGILL" in findings.notes[0]
    assert probe(_request(stage_folder, tmp_path), {}) == findings


async def test_the_note_of_a_fallback_reaches_the_facts(stage_folder, make_spec, tmp_path, monkeypatch):
    monkeypatch.setenv("P2PMESH_PROBE_TRAP", "1")
    async with LlamaEngineLauncher(LauncherOptions(str(tmp_path))).launch(make_spec()) as engine:
        assert "SIGILL" in engine.facts.notes[0]


def test_a_probe_that_cannot_run_gives_the_default_and_is_not_remembered(tmp_path):
    missing = ProbeRequest(str(tmp_path / "none.gguf"), "3" * 64, True, True, 2, 0, (), str(tmp_path / "cache"))
    findings = probe(missing, os.environ | {"PYTHONPATH": str(ROOT)})
    assert (findings.use_extra_buffers, findings.spin_count) == (False, DEFAULT_SPIN_COUNT)
    assert not (tmp_path / "cache").exists()


async def test_a_slow_reader_is_not_taken_for_a_hung_child(cache_folder, make_spec):
    options = LauncherOptions(str(cache_folder), is_probing=False, queued_frames=1)
    async with LlamaEngineLauncher(options).launch(make_spec()) as engine:
        dialogue = Dialogue([engine])
        await dialogue.begin(1)
        async with trio.open_nursery() as nursery:

            async def send_all() -> None:
                for _ in range(40):
                    await engine.send(dialogue.frame(FrameKind.DECODE, 0, [5]))

            nursery.start_soon(send_all)
            answers = {(await engine.receive()).tokens for _ in range(40)}
        assert len(answers) == 1
