"""A grader that does what its response says, to try the pool; imported by the workers."""

import os
import signal
import time


def grade(response, gold):
    match response.split():
        case ["hang"]:
            while True:
                pass
        case ["sleep", seconds]:
            time.sleep(float(seconds))
        case ["exit"]:
            os._exit(3)
        case ["crash"]:
            os.kill(os.getpid(), signal.SIGSEGV)
        case ["stop"]:
            os.kill(os.getpid(), signal.SIGSTOP)
        case ["raise"]:
            raise KeyError("broken")
        case ["eat"]:
            hoard = []
            while True:
                hoard.append(bytearray(100_000_000))
        case ["pid"]:
            return 1, str(os.getpid())
        case ["none"]:
            return -1, "unparsed"
    return int(response == gold), "compared"
