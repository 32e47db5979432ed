"""A volunteer with an empty home: it fetches the model that others are asked too much for, and serves it, too."""

from pathlib import Path

from tests.e2e.conftest import TINY
from tests.e2e.peers import NodeProcess, Peers, tokens_of, wait_until

PROMPT = "hello"
BUSY = 12


def ask(node: NodeProcess) -> list[int]:
    return tokens_of(node.complete(TINY, PROMPT, max_tokens=8, temperature=0))


def test_a_peer_without_any_model_becomes_a_replica_of_a_busy_one_and_outlives_it(
    peers: Peers, tiny_model: Path
) -> None:
    server = peers.found("server", "--model", str(tiny_model))
    # takes the engine that waits beside the server's run, and with it the file
    spare = peers.join("spare", server.invite, "--max-memory", "4GiB", "--on-demand", "off")
    assert wait_until(lambda: len(spare.children()) > 0, 60)
    volunteer = peers.join("volunteer", server.invite, "--max-memory", "1GiB")
    volunteer.wait_for("ready")
    expected = ask(server)
    assert [ask(volunteer) for _ in range(BUSY)] == BUSY * [expected]
    assert volunteer.wait_for("replica_fetching")["reason"] == "busy"
    fetched = volunteer.wait_for("replica_fetched")
    assert {source["peer_id"] for source in fetched["sources"]} <= {server.peer_id, spare.peer_id}
    assert fetched["fetched_bytes"] == tiny_model.stat().st_size
    (cached,) = (volunteer.home / "cache" / "stages").glob("*.gguf")
    assert cached.read_bytes() == tiny_model.read_bytes()
    assert volunteer.wait_for("load_on_demand")["model"] == TINY
    (stage,) = volunteer.wait_for("pipeline_ready")["stages"]
    assert stage["peer_id"] == volunteer.peer_id
    assert ask(volunteer) == expected
    server.kill()
    assert wait_until(lambda: volunteer.find("peer_failed") is not None, 60)
    assert ask(volunteer) == expected
