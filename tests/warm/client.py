"""Has a program run by a process that `server.py` forks, and is as long as that lasts.

Its output, its exit code and the signal that ended it are the program's; whoever kills this process
kills the program. Used by the executables that `warm.python` names.
"""

import fcntl
import hashlib
import json
import os
import socket
import subprocess
import sys

executable, *words = sys.argv[1:]
folder, start = os.path.split(executable)
SERVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "server.py")
READ_AT_IMPORT = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "XDG_", "HOME")
SINGLE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def connected() -> socket.socket:
    """A connection to what forks programs of this start in this environment: begun if need be.

    Those that import more than torch are programs of the one that imports torch.
    """
    read = sorted(item for item in os.environ.items() if item[0].startswith(READ_AT_IMPORT))
    key = "" if start == "torch" else hashlib.sha1(repr(read).encode()).hexdigest()[:12]
    path = f"{executable}-{key}"
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            connection.connect(path)
        except OSError:
            first = [sys.executable, "-I"] if start == "torch" else [os.path.join(folder, "torch")]
            environment = {n: value for n, value in os.environ.items() if n != "PYTHONPATH"}
            server = subprocess.Popen(
                [*first, SERVER, path, start],
                env=environment | SINGLE,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            server.stdout.readline()  # it listens
            connection.connect(path)
    return connection


asked = next((i for i, word in enumerate(words) if word != "-u"), None)
# A flag that changes the interpreter itself, or no program at all, is the real one's affair.
if asked is None or (words[asked][0] == "-" and words[asked] not in ("-c", "-m")):
    os.execv(sys.executable, [sys.executable, *words])
request = {
    "executable": executable,
    "words": words[asked:],
    "folder": os.getcwd(),
    "environment": dict(os.environ),
}
try:
    connection = connected()
    socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
except OSError:
    os.execv(sys.executable, [sys.executable, *words])
answer = connection.recv(64)
code = int(answer) if answer else 1
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
