"""A copied home is found out and gives way; a home that is started again after a kill is not taken for a copy."""

import shutil

from p2pmesh.base.errors import ErrorCode
from p2pmesh.cli.exit_codes import EXIT_CODES
from tests.e2e.peers import Peers

FOUND_OUT_S = 90.0
NO_MODEL = ("--max-memory", "0")


def test_a_copied_home_gives_way_and_a_restarted_one_does_not(peers: Peers) -> None:
    founder = peers.found("founder", *NO_MODEL)
    original = peers.join("original", founder.invite, *NO_MODEL)
    killed = peers.join("killed", founder.invite, *NO_MODEL)
    killed.kill()
    restarted = peers.start("restarted", "--join", founder.invite, *NO_MODEL, home=killed.home)
    copied_home = peers.folder / "copied"
    shutil.copytree(original.home, copied_home)

    copy = peers.start("copy", "--join", founder.invite, *NO_MODEL, home=copied_home)
    assert copy.peer_id == original.peer_id
    assert copy.wait_ended(FOUND_OUT_S) == EXIT_CODES[ErrorCode.IDENTITY_DUPLICATED]
    told = copy.wait_for("error")
    assert told["code"] == ErrorCode.IDENTITY_DUPLICATED.value
    assert [line for line in copy.errors if "rotate-node" in line and "node.key" in line], copy.errors
    assert not [line for line in copy.errors if "Traceback" in line], copy.errors

    assert original.wait_for("error")["code"] == ErrorCode.IDENTITY_DUPLICATED.value
    assert original.process.poll() is None
    assert restarted.process.poll() is None
    assert restarted.find("error") is None
    assert restarted.peer_id == killed.peer_id
