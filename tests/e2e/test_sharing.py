"""An owner's hours end while a stream runs over the machine: the run goes to another, and no byte of it is another."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.e2e.conftest import TINY
from tests.e2e.peers import Peers, run_command

PROMPT = "hello"
LONG = 900
LEAVE_S = 1


def text_of(chunks: Iterator[dict[str, Any]]) -> str:
    held = list(chunks)
    assert all("error" not in chunk for chunk in held), held[-1]
    return "".join(chunk["choices"][0]["text"] for chunk in held if chunk["choices"])


def hours_of_another_time() -> str:
    hour = (time.localtime().tm_hour + 3) % 24
    return f"{hour:02}:00-{hour:02}:30"


def test_a_stream_over_a_machine_whose_hours_end_is_the_same_stream(peers: Peers, tiny_model: Path) -> None:
    coordinator = peers.found("coordinator", "--model", str(tiny_model), "--max-memory", "0", "--ctx-size", "8192")
    volunteer = peers.join("volunteer", coordinator.invite, "--max-memory", "1GiB")
    assert coordinator.wait_for("pipeline_ready")["stages"][0]["peer_id"] == volunteer.peer_id
    spare = peers.join("spare", coordinator.invite, "--max-memory", "1GiB")
    asked: dict[str, Any] = {"max_tokens": LONG, "temperature": 0}
    with coordinator.stream(TINY, PROMPT, **asked) as chunks:
        undisturbed = text_of(chunks)

    settings = volunteer.home / "config.toml"
    with coordinator.stream(TINY, PROMPT, **asked) as chunks:
        began = next(chunks)["choices"][0]["text"]
        settings.write_text("share_hours = ['22-7']\n")
        volunteer.send_signal(signal.SIGHUP)
        assert f"{settings}:1: share_hours" in volunteer.wait_for("error")["message"]
        settings.write_text(f"share_hours = ['{hours_of_another_time()}']\nleave_within = {LEAVE_S}\n")
        volunteer.send_signal(signal.SIGHUP)
        leaving = volunteer.wait_for("sharing_changed")
        assert (leaving["state"], leaving["reason"], leaving["leave_s"]) == ("leaving", "hours", LEAVE_S)
        assert began + text_of(chunks) == undisturbed

    volunteer.wait_for("sharing_changed", where=lambda told: told["state"] == "resting")
    moved = coordinator.wait_for("pipeline_ready", where=lambda told: told["stages"][0]["peer_id"] == spare.peer_id)
    assert moved["run_id"] != coordinator.wait_for("pipeline_ready")["run_id"]
    assert volunteer.status()["sharing"]["given_bytes"] == 0

    settings.write_text("name = 'other'\n")
    reloaded = run_command("config", "reload", home=volunteer.home)
    assert reloaded.returncode == 0, reloaded.stderr
    by_itself = "nothing has changed" in reloaded.stdout  # the node may have seen the file first
    assert by_itself or "leave_within, share_hours took effect" in reloaded.stdout
    volunteer.wait_for("sharing_changed", where=lambda told: told["state"] == "giving")
