"""The thread that beats and watches, beside a main thread that is inside a call of foreign code, as in a step."""

import socket
import subprocess
import sys

from p2pmesh.adapters.llama.channel import EXIT_NODE_GONE
from p2pmesh.wire.engine import EngineKind, encode_message

BEATS = 3
INSIDE_A_STEP = """
import ctypes, socket, sys
from p2pmesh.adapters.llama.channel import Channel
Channel(socket.socket(fileno=int(sys.argv[1]))).start_beating()
ctypes.CDLL(None).pause()
"""


def test_a_child_inside_a_step_beats_and_ends_with_its_socket() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(60)
        command = [sys.executable, "-c", INSIDE_A_STEP, str(theirs.fileno())]
        child = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        try:
            theirs.close()
            beats = encode_message(EngineKind.BEAT, {}) * BEATS
            heard = b""
            while len(heard) < len(beats):
                heard += ours.recv(len(beats) - len(heard))
            assert heard == beats
            assert child.poll() is None
            ours.close()
            assert child.wait(60) == EXIT_NODE_GONE
        finally:
            child.kill()
            child.wait()
