"""Has a program run by the process that `server.py` forks, and is as long as that lasts.

Its output, its exit code and the signal that ended it are the program's; whoever kills this process
kills the program. Used by the executables that `warm.python` names.
"""

import json
import os
import socket
import sys

address, start, executable, *words = sys.argv[1:]
plain = [sys.executable, *words]
asked = next((i for i, word in enumerate(words) if word != "-u"), None)
# A flag that changes the interpreter itself, or no program at all, is the real one's affair.
if asked is None or (words[asked][0] == "-" and words[asked] not in ("-c", "-m")):
    os.execv(sys.executable, plain)
request = {
    "start": start,
    "executable": executable,
    "words": words[asked:],
    "folder": os.getcwd(),
    "environment": dict(os.environ),
}
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    connection.connect(address)
    socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
except OSError:
    os.execv(sys.executable, plain)
answer = connection.recv(64)
code = int(answer) if answer else 1
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
