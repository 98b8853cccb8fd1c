"""lab: a training under observation. Starts `tutti train`, knows its processes by their roles, reads the vault from
outside, and writes down what the program says and when.

Used by tests/chaos/run and bench/recover. Times are of time.monotonic(), in seconds.
"""
import ctypes
import json
import mmap
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHM = "/dev/shm"


def send(pid, sig):
    """False: it is gone."""
    try:
        os.kill(pid, sig)
        return True
    except ProcessLookupError:
        return False


# ---- a place of our own ----

def isolate():
    """Goes on in a PID namespace with a network and a /dev/shm of its own, if this user may: then what is left over is
    known for certain, and nothing of others can be hit. Returns whether it is so; the rest works without."""
    if os.environ.get("TUTTI_LAB"):
        return os.environ["TUTTI_LAB"] == "1"
    inner = 'mount -t tmpfs lab %s && mkdir -p /run/netns && mount -t tmpfs lab /run/netns && ip link set lo up || exit 1; "$@"; exit $?' % SHM
    lab = ["unshare", "-m", "-p", "-n", "-f", "--kill-child", "--mount-proc", "bash", "-c", inner, "lab"]
    test = lab + ["true"]
    if os.geteuid() or subprocess.run(test, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
        os.environ["TUTTI_LAB"] = "0"
        return False
    os.environ["TUTTI_LAB"] = "1"
    # A shell stays as the first process: it reaps what is orphaned.
    sys.stdout.flush()
    os.execvp("unshare", lab + [sys.executable] + sys.argv)


def clear_environment():
    for name in list(os.environ):
        if name.startswith("TUTTI_") and name != "TUTTI_LAB":
            del os.environ[name]
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")


# ---- processes ----

def read(path, mode="rb"):
    try:
        with open(path, mode) as f:
            return f.read()
    except OSError:
        return b"" if "b" in mode else ""


class Process:
    def __init__(self, pid):
        stat = read("/proc/%d/stat" % pid).decode(errors="replace")
        head, _, rest = stat.rpartition(") ")
        fields = rest.split()
        self.pid = pid
        self.ok = len(fields) > 1
        self.comm = head.partition("(")[2]
        self.state, self.parent = (fields[0], int(fields[1])) if self.ok else ("X", 0)
        self.env = {}

    def look(self):
        for entry in read("/proc/%d/environ" % self.pid).split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name in (b"TUTTI_WORLD", b"TUTTI_CONTROL_WORLD", b"OMPI_COMM_WORLD_RANK", b"PMI_RANK", b"TUTTI_CONTROL_PID"):
                self.env[name.decode()] = value.decode(errors="replace")
        return self


def processes():
    found = [Process(int(name)) for name in os.listdir("/proc") if name.isdigit()]
    return {p.pid: p for p in found if p.ok and p.state not in "XZ"}


def descendants(root, table=None):
    table = table or processes()
    children = {}
    for p in table.values():
        children.setdefault(p.parent, []).append(p)
    out, todo = [], [root]
    while todo:
        for p in children.get(todo.pop(), []):
            out.append(p)
            todo.append(p.pid)
    return out


def usage(pid):
    """Of a process: resident kB, descriptors, threads; None if it is gone."""
    try:
        status = read("/proc/%d/status" % pid).decode()
        kb = int(re.search(r"VmRSS:\s+(\d+)", status).group(1))
        threads = int(re.search(r"Threads:\s+(\d+)", status).group(1))
        return kb, len(os.listdir("/proc/%d/fd" % pid)), threads
    except (OSError, AttributeError):
        return None


def others():
    """How many threads outside of this lab want a CPU now, for each there is. Without a lab of our own: 0."""
    if os.environ.get("TUTTI_LAB") != "1":
        return 0
    running = int(read("/proc/loadavg", "r").split()[3].split("/")[0])
    own = sum(1 for pid in os.listdir("/proc") if pid.isdigit() for task in tasks(pid)
              if read("/proc/%s/task/%s/stat" % (pid, task)).rpartition(b") ")[2][:1] == b"R")
    return max(0, running - own) / os.cpu_count()


def tasks(pid):
    try:
        return os.listdir("/proc/%s/task" % pid)
    except OSError:
        return []


# ---- the vault, from outside ----

class Slot:
    """The head of a slot: src/store/vault_inner.h."""
    PID, WORD, HALF, HALF_SIZE = 64, 72, 80, 40

    def __init__(self, path):
        self.path = path
        with open(path, "rb") as f:
            self.inode = os.fstat(f.fileno()).st_ino
            self.map = mmap.mmap(f.fileno(), 65536, prot=mmap.PROT_READ)

    def is_named(self):
        try:
            return os.stat(self.path).st_ino == self.inode
        except OSError:
            return False

    def pid(self):
        return struct.unpack_from("<q", self.map, self.PID)[0]

    def look(self):
        """(generation, attempt, step) of what was committed last; None: nothing."""
        for _ in range(100):
            word, = struct.unpack_from("<Q", self.map, self.WORD)
            if not word:
                return None
            at = self.HALF + (word & 1) * self.HALF_SIZE
            begun, following, line = struct.unpack_from("<QQQ", self.map, at)
            if following == word >> 1 and struct.unpack_from("<Q", self.map, self.WORD)[0] == word:
                return line >> 32, line & 0xffffffff, (word >> 1) - 1
        return None


class Vault:
    """The slots of a run on this host; they come and go."""

    def __init__(self, run):
        self.run, self.folder, self.slots, self.listed = run, None, {}, 0

    def find(self):
        own = read(os.path.join(self.run, "id")).strip()
        for name in os.listdir(SHM) if own else ():
            folder = os.path.join(SHM, name)
            if read(os.path.join(folder, "owner")).strip() == own:
                self.folder = folder
        return self.folder

    def refresh(self):
        now = time.monotonic()
        if now - self.listed < 0.05:
            return
        self.listed = now
        if not (self.folder and os.path.isdir(self.folder)):
            self.slots = {}
            if not self.find():
                return
        names = [n for n in os.listdir(self.folder) if re.fullmatch(r"slot-\d+", n)] if os.path.isdir(self.folder) else []
        for name in list(self.slots):
            if name not in names or not self.slots[name].is_named():
                del self.slots[name]
        for name in names:
            if name not in self.slots:
                try:
                    self.slots[name] = Slot(os.path.join(self.folder, name))
                except (OSError, ValueError):
                    pass

    def look(self):
        """Of each slot, but for those that a larger world before has left behind: nobody holds them."""
        self.refresh()
        try:
            looks = [(s, s.look()) for s in self.slots.values()]
        except (OSError, ValueError):
            return []
        newest = max((look[0] for _, look in looks if look), default=0)
        return [look for s, look in looks if look and look[0] == newest or os.path.exists("/proc/%d" % s.pid())]


class Watch(threading.Thread):
    """Writes down each time the step that all slots have, or its generation, is another one; keeps the highest
    of each generation."""

    def __init__(self, run, pause_s=0.001):
        super().__init__(daemon=True)
        self.vault, self.pause_s, self.done = Vault(run), pause_s, False
        self.seen = []  # (time, generation, step) that all slots have reached
        self.top = {}  # generation: the highest step of any slot
        self.start()

    def run(self):
        last = None
        while not self.done:
            now = time.monotonic()
            looks = self.vault.look()
            for look in looks:
                if look and look[2] > self.top.get(look[0], -1):
                    self.top[look[0]] = look[2]
            if looks and None not in looks:
                all_have = (min(look[0] for look in looks), min(look[2] for look in looks))
                if all_have != last:
                    self.seen.append((now,) + all_have)
                    last = all_have
            time.sleep(self.pause_s)

    def committed(self):
        return self.seen[-1][2] if self.seen else -1

    def best(self):
        return max(self.top.values(), default=-1)

    def stop(self):
        self.done = True
        self.join()


# ---- a training ----

class Training:
    """One `tutti train`, perhaps with several supervisors one after another."""

    def __init__(self, program, job, run, workers, extra=(), tmp=None, env=None):
        self.program, self.job, self.run, self.workers = os.path.abspath(program), job, run, workers
        self.extra, self.env = list(extra), dict(os.environ, **(env or {}))
        self.tmp = tmp or tempfile.mkdtemp(prefix="lab-")
        self.env["TMPDIR"] = self.tmp
        self.events = []  # (time, object)
        self.usage = []  # (time, pid, kB, descriptors, threads)
        self.process = None
        self.lives = 0
        self.prefix = []  # where it is started
        self.errors = os.path.join(self.tmp, "stderr")
        self.codes = []

    def start(self, resume=False):
        argv = self.prefix + [self.program, "train", self.job, "-n", str(self.workers), "--json", "--run", self.run] + self.extra
        if resume:
            argv += ["--resume", "auto"]
        self.lives += 1
        with open(self.errors, "ab") as errors:
            self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL,
                                            env=self.env, start_new_session=True)
        self.reader = threading.Thread(target=self.listen, args=(self.process,), daemon=True)
        self.reader.start()

    def listen(self, process):
        for line in process.stdout:
            now = time.monotonic()
            try:
                self.events.append((now, json.loads(line)))
            except ValueError:
                self.events.append((now, {"event": "garbage", "text": line.decode(errors="replace")}))

    def ended(self):
        return self.process.poll() is not None

    def wait(self, limit_s):
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        self.reader.join(5)
        self.codes.append(code)
        return code

    def sample(self):
        """Once in a while: what the supervisor uses."""
        found = usage(self.process.pid) if not self.ended() else None
        if found:
            self.usage.append((time.monotonic(), self.process.pid) + found)

    def heard(self, kind, since=0.0):
        return [(t, e) for t, e in self.events if t >= since and e.get("event") == kind]

    def end_event(self):
        found = self.heard("end")
        return found[-1][1] if found else None

    def roles(self):
        """The processes of this training: supervisor, keeper, launcher, proxy, worker, standby (workers of a world that
        has not had its turn). Those of a world that is being ended are in none."""
        table = processes()
        roles = {"supervisor": [], "keeper": [], "launcher": [], "proxy": [], "worker": [], "standby": []}
        sup = table.get(self.process.pid)
        if not sup:
            return roles
        roles["supervisor"] = [sup]
        held = {s.pid() for s in self.vault_slots()}
        worlds = {}
        for p in descendants(sup.pid, table):
            if p.parent == sup.pid and p.comm == "tutti-world":
                roles["keeper"].append(p)
            elif p.comm.startswith(("mpirun", "mpiexec")):
                roles["launcher"].append(p)
            elif p.comm.startswith("hydra"):
                roles["proxy"].append(p)
            elif p.comm.startswith("tutti"):
                p.look()
                worlds.setdefault(p.env.get("TUTTI_CONTROL_WORLD", "?"), []).append(p)
        for members in worlds.values():
            active = any(p.pid in held for p in members)
            roles["worker" if active else "standby"] += members
        for p in roles["worker"] + roles["standby"]:
            p.rank = int(p.env.get("OMPI_COMM_WORLD_RANK", p.env.get("PMI_RANK", "-1")))
        above = set()  # of the active world
        for p in roles["worker"]:
            while p and p.pid != sup.pid:
                above.add(p.pid)
                p = table.get(p.parent)
        for some in roles.values():
            for p in some:
                p.active = p.pid in above
        return roles

    def vault_slots(self):
        vault = Vault(self.run)
        vault.refresh()
        return list(vault.slots.values())

    def is_standing_by(self):
        """Is the next world there, and quiet? Its workers wait for GO and use no CPU."""
        standby = self.roles()["standby"]
        if len(standby) < self.workers:
            return False

        def ticks():
            return [sum(map(int, read("/proc/%d/stat" % p.pid).rpartition(b") ")[2].split()[11:13] or [0])) for p in standby]
        before = ticks()
        time.sleep(0.15)
        return sum(ticks()) - sum(before) <= 2

    def close(self):
        """Ends what is left of it, in whatever state."""
        if self.process and not self.ended():
            self.process.kill()
            self.process.wait()


def litter(tmp):
    """What is left of trainings whose temporary folder this was: files there and in /dev/shm, processes."""
    left = []
    for folder, keep in ((tmp, ("stderr",)), (SHM, ())):
        for name in os.listdir(folder):
            if name not in keep and (folder == tmp or name.startswith("tutti")):
                left.append(os.path.join(folder, name))
    for p in processes().values():
        if p.comm.startswith(("tutti", "mpirun", "mpiexec", "hydra")):
            left.append("process %d (%s)" % (p.pid, p.comm))
    return left


def settle(tmp, limit_s=3.0):
    """Waits until nothing is left; returns what is, then."""
    until = time.monotonic() + limit_s
    while litter(tmp) and time.monotonic() < until:
        time.sleep(0.02)
    return litter(tmp)


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))] if values else float("nan")
