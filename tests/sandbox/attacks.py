"""Programs that try to leave a sandbox; each prints `escaped` if it succeeds.

`{file}` is a file outside of the sandbox, `{port}` a listening port of this machine, `{victim}` the id of a process of
this user.
"""

ATTACKS = {
    "network": "import socket; socket.create_connection(('127.0.0.1', {port}), 600); print('escaped')",
    "network by a raw call": """
import ctypes
print('escaped' if ctypes.CDLL(None).syscall({socket_number}, 2, 1, 0) >= 0 else 'rejected')""",
    "read a file": "print('escaped' if 'secret' in open({file!r}).read() else '')",
    "write a file": "open({file!r}, 'a').write('changed'); print('escaped')",
    "delete a file": """
import os
os.rename({file!r}, {file!r} + '.old'); os.rename({file!r} + '.old', {file!r}); print('escaped')""",
    "change a file's mode": "import os; os.chmod({file!r}, 0o600); print('escaped')",
    "symbolic link": """
import os
os.symlink({file!r}, 'link'); print('escaped' if 'secret' in open('link').read() else '')""",
    "hard link": "import os; os.link({file!r}, 'link'); print('escaped')",
    "parent folder": "import os; os.chdir('/'); os.listdir('home'); print('escaped')",
    "environment of the parent": """
import os
print('escaped' if open(f'/proc/{{os.getppid()}}/environ', 'rb').read() else '')""",
    "memory of the parent": """
import os
os.close(os.open(f'/proc/{{os.getppid()}}/mem', os.O_RDONLY)); print('escaped')""",
    "signal to a process": "import os; os.kill({victim}, 0); print('escaped')",
    "signal by a raw call": """
import ctypes
print('escaped' if ctypes.CDLL(None).syscall({kill_number}, {victim}, 0) == 0 else 'rejected')""",
    "signal through a file's owner": """
import fcntl, os, socket
fcntl.fcntl(socket.socketpair()[0], fcntl.F_SETOWN, {victim}); print('escaped')""",
    "child process": """
import os
if os.fork() == 0: os._exit(0)
print('escaped')""",
    "child process by a raw call": """
import ctypes, os
child = ctypes.CDLL(None).syscall({clone_number}, 17, 0, 0, 0, 0)
if child == 0: os._exit(0)
print('escaped' if child > 0 else 'rejected')""",
    "another program": "import os; os.execv('/bin/echo', ['echo', 'escaped'])",
    "a session of its own": """
import ctypes
print('escaped' if ctypes.CDLL(None).unshare(0x10000000) == 0 else 'rejected')""",
    "higher limits": """
import resource
resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40)); print('escaped')""",
    "larger buffers of sockets": """
import socket
socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 10**6); print('escaped')""",
    "larger buffers of pipes": "import fcntl, os; fcntl.fcntl(os.pipe()[0], 1031, 2**20); print('escaped')",
    "sockets that no process has open": """
import socket
a, b = socket.socketpair()
socket.send_fds(a, [b'x'], [b.fileno()]); print('escaped')""",
    "requests that the kernel counts for the machine": """
import ctypes, platform
number = 0 if platform.machine() == 'aarch64' else 206
if ctypes.CDLL(None).syscall(number, 1, ctypes.byref(ctypes.c_ulong())) == 0: print('escaped')
raise OSError""",
    "watches that the kernel counts for the user": """
import ctypes
if ctypes.CDLL(None).inotify_init1(0) >= 0: print('escaped')
raise OSError""",
    "timers that the kernel counts for the user": """
import ctypes
library = ctypes.CDLL(None)
if all(library.timer_create(1, None, ctypes.byref(ctypes.c_void_p())) == 0 for _ in range(1000)): print('escaped')
raise OSError""",
    "memory outside of the limit": "import os; os.memfd_create('x'); print('escaped')",
}

EXHAUSTION = {
    "memory": "x = bytearray(4 * 10**9); print('escaped')",
    "memory in parts": "x = []\nwhile True: x.append(bytearray(10**7))",
    "processes": "import os\nwhile True: os.fork()",
    "threads": """
import threading, time
def many():
    while True: threading.Thread(target=time.sleep, args=(60,)).start()
many()""",
    "threads with small stacks": """
import threading, time
threading.stack_size(32768)
for n in range(1000): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print('escaped')""",
    "output": "while True: print('x' * 10**6)",
    "errors": "import sys\nwhile True: sys.stderr.write('x' * 10**6)",
    "file": "open('large', 'wb').write(bytes(10**8)); print('escaped')",
    "open files": "x = [open('f', 'w') for _ in range(10**5)]; print('escaped')",
    "time": "while True: pass",
    "sleep after the output": "import os, time; os.close(1); os.close(2); time.sleep(600)",
    "regular expression": "import re; re.match('(a+)+$', 'a' * 60 + 'b')",
    "exit": "import os; os._exit(0)",
    "exit with an exception": "raise SystemExit(0)",
    "crash": "import ctypes; ctypes.string_at(0)",
}
"""Programs that take a resource, or end before their last line: none of them completes."""
