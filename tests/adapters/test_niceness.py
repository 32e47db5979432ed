import os
import subprocess
import sys

import psutil

from p2pmesh.adapters.niceness import set_niceness


def test_a_process_gives_way_as_it_is_told_and_so_do_its_threads() -> None:
    script = "import sys, threading, os\nsys.stdin.readline()\n" + (
        "made = threading.Thread(target=lambda: print(os.getpriority(os.PRIO_PROCESS, 0)))\nmade.start()\nmade.join()\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, text=True) as child:
        set_niceness(child.pid, 19)
        assert psutil.Process(child.pid).nice() == 19
        assert child.communicate("\n", timeout=30)[0] == "19\n"


def test_a_process_that_is_gone_is_no_failure() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    set_niceness(child.pid, 5)
    assert os.getpriority(os.PRIO_PROCESS, 0) == os.nice(0)
