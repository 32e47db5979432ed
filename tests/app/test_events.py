from p2pmesh.app import events
from p2pmesh.app.events import EventName
from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.base.ids import LayerRange, PeerId

PEER = PeerId("12D3KooWExample")


def test_the_names_that_scripts_rely_on() -> None:
    assert {"invite", "listening", "pipeline_ready", "ready", "error"} <= {name.value for name in EventName}


def test_the_fields_that_scripts_rely_on() -> None:
    assert set(events.listening("a", "c", PEER).fields) == {"api_url", "console_url", "peer_id"}
    assert events.invite("x").fields == {"invite": "x"}
    assert events.ready("u", ("m",)).fields == {"api_url": "u", "models": ["m"]}
    assert events.error(Refused(ErrorCode.OVERLOADED, "full")).fields == {"code": "overloaded", "message": "full"}
    assert events.pipeline_ready("m", b"\x01" * 16, [(PEER, LayerRange(0, 3))]).fields == {
        "model": "m",
        "run_id": "01" * 16,
        "stages": [{"peer_id": PEER, "layers": [0, 3]}],
    }
