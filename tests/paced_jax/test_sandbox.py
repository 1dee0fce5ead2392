"""The sandbox against hostile programs, run for real."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from paced_jax.verifiers import sandbox
from paced_jax.verifiers.sandbox import Limits, SandboxError

ROOT = Path(__file__).resolve().parents[2]
# Generous: the machine may be busy, and no test waits for a clock unless it says so.
CLOCKS = {"cpu_seconds": 20, "wall_seconds": 60.0}


@pytest.fixture(scope="module", autouse=True)
def a_machine_that_can():
    try:
        sandbox.run("")
    except SandboxError as refusal:
        pytest.skip(str(refusal))


def attempt(code, stdin="", **limits):
    return sandbox.run(code, stdin, Limits(**{**CLOCKS, **limits}))


def error_of(code):
    """The name of the exception that one expression or statement ends in."""
    wrapped = f"try:\n    {code}\n    print('done')\nexcept BaseException as e:\n"
    return attempt(wrapped + "    print(type(e).__name__, getattr(e, 'errno', ''))").stdout.strip()


def marked_processes(mark):
    """Processes of this machine whose command line or environment holds a mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes():
                found.append(folder.name)
        except OSError:
            continue
    return found


def test_a_program_runs_with_its_input():
    outcome = attempt("import json, math\nprint(json.dumps(int(input()) * 2))\nexit(3)", "21\n")
    assert outcome[:5] == ("exit", 3, None, "42\n", "")
    assert outcome.cpu_seconds > 0


def test_unicode_passes():
    assert attempt("print(input() + 'π')", "é").stdout == "éπ\n"


def test_it_sees_the_interpreter_and_its_scratch_directory_alone():
    code = """
import os, sys
known = (sys.base_prefix, '/lib', '/usr/lib', '/lib64', '/usr/lib64', '/dev', '/scratch')
seen = [os.path.join(f, n) for f, _, names in os.walk('/') for n in names]
print([s for s in seen if not s.startswith(known) and s not in (sys.executable, '/program.py')])
print(os.listdir('/scratch'), sorted(os.listdir('/dev')))
print([s for s in seen if 'site-packages/' in s])
"""
    lines = attempt(code).stdout.splitlines()
    assert lines == ["[]", "[] ['null', 'urandom', 'zero']", "[]"]


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/etc/shadow", str(ROOT / "pyproject.toml"), "/proc/self/environ"]
)
def test_other_files_are_not_there(path):
    assert error_of(f"open({path!r}).read()") == "FileNotFoundError 2"


@pytest.mark.parametrize(
    "path", ["/program.py", "/new", "/dev/null2", os.__file__, "/lib/new", sys.base_prefix + "/x"]
)
def test_nothing_can_be_written_outside_the_scratch_directory(path):
    outcome = error_of(f"open({path!r}, 'w').write('x')")
    assert outcome.split()[0] in ("OSError", "PermissionError", "FileNotFoundError")
    assert error_of("open('/scratch/new', 'w').write('x')") == "done"


def test_the_old_root_cannot_be_reached_by_dots_or_descriptors():
    assert error_of("os = __import__('os'); os.chroot('/scratch')") == "PermissionError 1"
    code = """
import os
os.chdir('../' * 30)
print(sorted(os.listdir('.')) == sorted(os.listdir('/')))
open_fds = []
for fd in range(3, 1100):
    try:
        os.fstat(fd)
        open_fds.append(fd)
    except OSError:
        pass
print(open_fds)
"""
    lines = attempt(code).stdout.splitlines()
    assert lines[0] == "True"
    # The program's own file may be open while it runs; it is read-only in any case.
    assert lines[1] in ("[]", "[3]")


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK"])
def test_no_socket_opens(family):
    assert error_of(f"import socket; socket.socket(socket.{family})") == "PermissionError 1"


def test_other_processes_and_their_environment_are_out_of_sight(monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_TEST", "hidden")
    code = f"""
import os
print('SECRET_OF_THE_TEST' in os.environ, os.path.exists('/proc'), os.getpid())
for pid in (1, {os.getpid()}):
    try:
        os.kill(pid, 0)
        print('reached', pid)
    except OSError as e:
        print(type(e).__name__)
"""
    lines = attempt(code).stdout.splitlines()
    assert lines[0] == "False False 2"
    # Process 1 of its own namespace is there, under another user or out of a signal's reach.
    assert lines[1] in ("PermissionError", "reached 1")
    assert lines[2:] == ["ProcessLookupError"]


def test_process_1_survives_every_signal():
    code = """
import os, signal
for number in range(1, 65):
    try:
        os.kill(1, number)
    except OSError:
        pass
print('still here')
"""
    assert attempt(code)[:4] == ("exit", 0, None, "still here\n")


def test_no_privilege_is_left_or_gained():
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print(os.getuid() != 0, os.getuid() == os.geteuid() == os.getgid(), os.getgroups() in ([], [65534]))
print(libc.prctl(39, 0, 0, 0, 0), libc.prctl(21, 0, 0, 0, 0))  # no_new_privs set; seccomp: 2
print([libc.prctl(23, cap, 0, 0, 0) for cap in range(38)] == [0] * 38)  # the bounding set
header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[1] * 6)
print(libc.capget(header, sets), list(sets))
for name, arguments in (('unshare', (0x10000000,)), ('mount', (b'x', b'/scratch', b'tmpfs', 0, 0)),
                        ('ptrace', (0, 0, 0, 0)), ('setns', (0, 0))):
    print(name, getattr(libc, name)(*arguments), ctypes.get_errno())
for number in (425, 321, 272, 430):
    print(libc.syscall(number, 0, 0, 0), ctypes.get_errno())
try:
    os.setuid(0)
except OSError as e:
    print(type(e).__name__)
"""
    lines = attempt(code).stdout.splitlines()
    assert lines[0].split()[:1] == ["True"] and lines[0].endswith("True")
    assert lines[1] == "1 2"
    assert lines[2] == "True"
    assert lines[3] == "0 [0, 0, 0, 0, 0, 0]"
    assert lines[4:8] == [f"{name} -1 1" for name in ("unshare", "mount", "ptrace", "setns")]
    assert lines[8] == "-1 1"
    assert lines[-1] == "PermissionError"


def test_a_fork_bomb_is_contained():
    mark = f"bomb-{time.monotonic_ns()}"
    code = f"""
import os, sys
mark = {mark!r}
born = 0
for _ in range(1000):
    try:
        if os.fork() == 0:
            while True:
                try:
                    os.fork()
                except OSError:
                    pass
        born += 1
    except OSError:
        break
print(born)
"""
    outcome = attempt(code, cpu_seconds=5)
    # The first children may fork too and take the places; never more than the limit of 8.
    assert outcome.ended == "exit" and 1 <= int(outcome.stdout) <= 7


def test_threads_count_as_processes():
    code = "import threading, time\nfor i in range(50):\n"
    code += "    print(i, flush=True)\n    threading.Thread(target=time.sleep, args=(1,)).start()"
    outcome = attempt(code)
    assert "can't start new thread" in outcome.stderr
    assert len(outcome.stdout.splitlines()) <= 8


def test_what_it_leaves_running_ends_with_it():
    mark = f"left-{time.monotonic_ns()}"
    code = f"""
import os, sys, time
if os.fork() == 0:
    os.setsid()
    os.execve(sys.executable, [sys.executable, '-c', 'import time; time.sleep(600)', {mark!r}],
              dict(os.environ))
time.sleep(.5)
print('gone')
"""
    outcome = attempt(code)
    assert outcome.stdout == "gone\n"
    assert marked_processes(mark.encode()) == []


def test_a_memory_hog_is_stopped():
    outcome = attempt("x = []\nwhile True:\n    x.append(bytearray(10**7))", memory_bytes=2**28)
    assert outcome.ended == "exit" and outcome.exit_code == 1
    assert "MemoryError" in outcome.stderr


def test_an_endless_loop_ends_by_processor_time():
    outcome = attempt("while True:\n    pass", cpu_seconds=1)
    assert outcome.ended == "cpu"
    assert 0.9 < outcome.cpu_seconds < 4


def test_one_that_ignores_the_signal_ends_too():
    code = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True:\n    pass"
    assert attempt(code, cpu_seconds=1).ended == "cpu"


def test_a_sleeper_ends_by_the_wall_clock_with_all_its_children():
    mark = f"sleeper-{time.monotonic_ns()}"
    code = f"""
import os, sys, time
print('asleep', flush=True)
os.fork()
os.execve(sys.executable, [sys.executable, '-c', 'import time; time.sleep(600)', {mark!r}],
          dict(os.environ))
"""
    started = time.monotonic()
    outcome = attempt(code, wall_seconds=3.0)
    assert outcome.ended == "wall" and outcome.exit_code is None
    assert outcome.stdout == "asleep\n"
    assert time.monotonic() - started < 30
    assert marked_processes(mark.encode()) == []


def test_a_file_flood_stays_small():
    code = """
import os
written = 0
try:
    for number in range(100000):
        with open(f'/scratch/{number}', 'wb') as file:
            written += file.write(bytes(500_000))
except OSError as e:
    print(e.errno, written <= 4_000_000, number < 10)
"""
    assert attempt(code, scratch_bytes=4_000_000).stdout == "28 True True\n"  # ENOSPC
    code = """
try:
    for number in range(100000):
        open(f'/scratch/{number}', 'w').close()
except OSError as e:
    print(e.errno, number < 50)
"""
    assert attempt(code, files=50).stdout == "28 True\n"


def test_one_file_and_the_output_stay_small():
    code = "import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    code += "try:\n    open('/scratch/x', 'wb').write(bytes(3_000_000))\n"
    code += "except OSError as e:\n    print(e.errno)"
    assert attempt(code).stdout == "27\n"  # EFBIG
    outcome = attempt("while True:\n    print('x' * 1000)", file_bytes=50_000)
    assert len(outcome.stdout) <= 50_000 and outcome.ended != "wall"


def test_jails_do_not_share_their_scratch_directories():
    attempt("open('/scratch/note', 'w').write('x')")
    assert attempt("import os; print(os.listdir('/scratch'))").stdout == "[]\n"


# Runs a program in the sandbox from a process that something was taken from first.
DIMINISHED = """
import ctypes, os, sys, types
{before}
for name, folder in (('paced_jax', '{root}'), ('paced_jax.verifiers', '{root}/verifiers')):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from paced_jax.verifiers import sandbox
try:
    print(sandbox.run({code!r}).stdout)
except sandbox.SandboxError as error:
    print('refused:', error)
"""


def diminished(before, code="print('ran')", root=ROOT / "paced_jax", python=sys.executable):
    """What the sandbox says there."""
    script = DIMINISHED.format(before=before, code=code, root=root)
    done = subprocess.run([python, "-I", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="drops a capability, which needs root")


@as_root
def test_without_the_right_to_make_namespaces_it_refuses_and_says_so():
    # 21 is CAP_SYS_ADMIN; 24 drops it for the launcher, started by exec.
    words = diminished("ctypes.CDLL(None).prctl(24, 21, 0, 0, 0)")
    assert words.startswith("refused: sandbox: missing mount namespace: [Errno 1]")


@as_root
def test_without_the_right_to_change_its_user_it_refuses_and_says_so():
    words = diminished("ctypes.CDLL(None).prctl(24, 7, 0, 0, 0)")  # CAP_SETUID
    assert words.startswith("refused: sandbox: missing unprivileged user id: [Errno 1]")


def test_on_another_system_it_refuses_and_says_so(monkeypatch):
    monkeypatch.setattr(sandbox.sys, "platform", "darwin")
    with pytest.raises(SandboxError, match="missing Linux namespaces"):
        sandbox.run("print('ran')")


SYSTEM_PYTHON = "/usr/bin/python3"


@as_root
@pytest.mark.skipif(not os.path.exists(SYSTEM_PYTHON), reason=f"no {SYSTEM_PYTHON}")
def test_an_ordinary_user_gets_the_same_jail():
    """As nobody, with an interpreter that nobody can read, through a user namespace."""
    code = """
import ctypes, os, socket
print(os.getuid(), os.getgid(), os.listdir('/scratch'), os.path.exists('/etc/passwd'))
try:
    socket.socket()
except OSError as e:
    print(e.errno)
for path in ('/new', '/program.py', os.__file__):
    try:
        open(path, 'w')
        print('wrote', path)
    except OSError as e:
        print(e.errno)
born = 0
for _ in range(100):
    try:
        if os.fork() == 0:
            import time; time.sleep(60)
        born += 1
    except OSError:
        break
print(0 < born < 8)
for number in range(1, 65):
    try:
        os.kill(1, number)
    except OSError:
        pass
print(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0), 'end')
"""
    become = "os.setgroups([]); os.setresgid(*[65534] * 3); os.setresuid(*[65534] * 3)"
    # The checkout may lie where nobody cannot look.
    with tempfile.TemporaryDirectory() as copy:
        os.chmod(copy, 0o755)
        shutil.copytree(ROOT / "paced_jax" / "verifiers", f"{copy}/verifiers")
        words = diminished(become, code, Path(copy), SYSTEM_PYTHON)
    if words.startswith("refused: sandbox: missing user namespace"):
        pytest.skip(words)
    lines = words.split()
    assert lines[:4] == ["65534", "65534", "[]", "False"], words
    assert lines[4] == "1" and "wrote" not in lines
    assert lines[-3:] == ["True", "1", "end"], words


def test_bad_limits_are_refused_by_name():
    with pytest.raises(ValueError, match="memory_bytes: must be positive, got 0"):
        Limits(memory_bytes=0)
