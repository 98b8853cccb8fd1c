"""faults: what is done to a training on one host, and who does it.

A kind is one function: it gets the disturber, hits somebody, and returns whom; None if there is nobody to hit now. It says in
d.ends whether the active world ends by it, in d.heals when it is over, if that is not at once, and in d.loses that every copy of
the state went with it.
"""
import os
import shutil
import signal
import subprocess
import threading
import time

import lab

def pick(d, role, which=None):
    found = [p for p in d.t.roles()[role] if which is None or which(p)]
    return d.rng.choice(found) if found else None


def hit(d, role, sig, which=None):
    p = pick(d, role, which)
    if not p or not lab.send(p.pid, sig):
        return None
    d.ends = p.active
    if role in ("worker", "standby"):
        return "rank %d" % p.rank
    return "%s's, %s" % (role, "active" if p.active else "standby")


def kill_first(d):
    return hit(d, "worker", signal.SIGKILL, lambda p: p.rank == 0)


def kill_other(d):
    return hit(d, "worker", signal.SIGKILL, lambda p: p.rank > 0)


def crash(d):
    return hit(d, "worker", d.rng.choice((signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)))


def kill_standby(d):
    return hit(d, "standby", signal.SIGKILL)


def kill_launcher(d):
    return hit(d, "launcher", signal.SIGKILL)


def kill_proxy(d):
    return hit(d, "proxy", signal.SIGKILL)


def kill_keeper(d):
    return hit(d, "keeper", signal.SIGKILL)


def kill_two(d):
    workers = d.t.roles()["worker"]
    if len(workers) < 2:
        return None
    for p in d.rng.sample(workers, 2):
        lab.send(p.pid, signal.SIGKILL)
    return "two at once"


def kill_world(d):
    workers = d.t.roles()["worker"]
    for p in workers:
        lab.send(p.pid, signal.SIGKILL)
    return "all workers" if workers else None


def kill_again(d):
    """One dies, and then one of those who take over, while they do."""
    generation = max(d.watch.top, default=0)
    if not kill_other(d):
        return None
    until = time.monotonic() + 3
    while time.monotonic() < until and max(d.watch.top, default=0) <= generation:
        events = d.t.heard("generation", until - 3)
        if events:
            break
        time.sleep(0.001)
    time.sleep(d.rng.choice((0, 0.002, 0.005, 0.01, 0.02, 0.04)))
    standby = d.t.roles()
    p = d.rng.choice(standby["standby"] + standby["worker"] or [None])
    if p:
        lab.send(p.pid, signal.SIGKILL)
    return "and another in recovery"


def stop(d):
    p = pick(d, d.rng.choice(("worker", "worker", "standby")))
    pause = d.rng.choice((0.3, 0.6, 5))
    if p and p.active and d.late:
        pause = d.late.pop()
    if not p or not lab.send(p.pid, signal.SIGSTOP):
        return None
    d.later(pause, lambda: lab.send(p.pid, signal.SIGCONT))
    d.ends = pause > 1 and p.active  # 0.6 s may be just short enough
    d.heals = time.monotonic() + (0 if d.ends else pause)
    return "%s for %g s" % ("rank %d" % p.rank, pause)


def slow(d):
    """A worker that gets a quarter of its time for a while."""
    p = pick(d, "worker")
    if not p:
        return None
    until = time.monotonic() + d.rng.uniform(0.5, 2)
    while time.monotonic() < until:
        if not lab.send(p.pid, signal.SIGSTOP):
            break
        time.sleep(0.03)
        lab.send(p.pid, signal.SIGCONT)
        time.sleep(0.01)
    lab.send(p.pid, signal.SIGCONT)
    return "rank %d" % p.rank


def nice(d):
    p = pick(d, "worker")
    if not p:
        return None
    try:
        os.setpriority(os.PRIO_PROCESS, p.pid, 19)
    except OSError:
        return None
    return "rank %d" % p.rank


def kill_supervisor(d):
    if d.t.ended():
        return None
    d.t.process.kill()
    d.t.process.wait()
    d.t.reader.join(5)
    return begin_again(d)


def end_everyone(d):
    everyone = [d.t.process.pid] + [p.pid for p in lab.descendants(d.t.process.pid)]
    d.rng.shuffle(everyone)
    for pid in everyone:
        lab.send(pid, signal.SIGKILL)
    d.t.process.wait()
    d.t.reader.join(5)


def begin_again(d):
    d.t.start(resume=True)
    d.heals = time.monotonic()
    d.ends = True
    return "then --resume auto"


def kill_all(d):
    end_everyone(d)
    return begin_again(d)


def resize(d):
    if not d.can_resize or d.t.ended():
        return None
    n = d.rng.choice((1, 2, 3, 4, 5))
    code = subprocess.run(d.t.prefix + [d.t.program, "resize", d.t.run, str(n)], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, env=d.t.env, timeout=30).returncode
    return "to %d" % n if code == 0 else None


def newest_saved(run):
    """The step of the checkpoint that is the newest for certain; -1: there is none."""
    name = lab.read(os.path.join(run, "checkpoints", "LATEST"), "r").strip()
    return int(name.rpartition("-")[2]) if name.rpartition("-")[2].isdigit() else -1


def wipe_all(d):
    """Every copy in memory is gone, and all workers with it: it goes on from the disk, and says so."""
    vault = lab.Vault(d.t.run)
    workers = d.t.roles()["worker"]  # those that have slots there
    if newest_saved(d.t.run) < 0 or not vault.find() or not workers:
        return None
    d.saved, d.loses = newest_saved(d.t.run), True
    shutil.rmtree(vault.folder, ignore_errors=True)
    for p in workers:
        lab.send(p.pid, signal.SIGKILL)
    return "the vault"


def reboot(d):
    """The machine is switched off: processes and memory are gone, the disk is not."""
    vault = lab.Vault(d.t.run)
    if newest_saved(d.t.run) < 0 or d.t.ended():
        return None
    end_everyone(d)
    d.saved = newest_saved(d.t.run)
    if vault.find():
        shutil.rmtree(vault.folder, ignore_errors=True)
    d.loses = True
    return begin_again(d)


ENDS = {kill_first, kill_other, crash, kill_two, kill_world, kill_again, wipe_all}
QUIET = {slow, nice, resize}
NEW_LIFE = {kill_supervisor, kill_all, reboot}
# How often each, before the mix of a run is drawn.
KINDS = {kill_first: 4, kill_other: 6, crash: 3, kill_standby: 3, kill_launcher: 2, kill_proxy: 2, kill_keeper: 2, kill_two: 2,
         kill_world: 1, kill_again: 3, stop: 5, slow: 1, nice: 1, kill_supervisor: 2, kill_all: 1, resize: 2, wipe_all: 2, reboot: 1}


class Fault:
    def __init__(self, kind, at):
        self.kind, self.name, self.at = kind, kind.__name__, at
        self.whom, self.healed, self.alone, self.told, self.back = None, at, False, None, None
        self.ends, self.loses, self.saved = False, False, -1


class Disturber:
    """Injects the faults of a run, one after another, and writes them down."""

    def __init__(self, t, watch, rng, count, can_resize, kinds, means):
        self.t, self.watch, self.rng, self.count, self.can_resize = t, watch, rng, count, can_resize
        self.faults, self.timers, self.barren, self.crowd = [], [], 0, [0]
        self.late = []  # so long, in seconds, the next workers that are stopped stay so
        # Mix and intensity are the run's own: some kinds do not happen at all, some often.
        self.weights = {k: w * rng.choice((0, 0.5, 1, 1, 3)) for k, w in kinds.items()}
        if not any(self.weights[k] for k in ENDS if k in self.weights):
            self.weights[kill_other] = 6
        self.mean_s = rng.choice(means)

    def later(self, pause, call):
        timer = threading.Timer(pause, call)
        timer.daemon = True
        timer.start()
        self.timers.append(timer)

    def is_well(self):
        """Has a step been committed since the last fault healed?"""
        if not self.faults:
            return True
        last = self.faults[-1]
        return any(at > last.healed and (g > last.generation or not last.ends) for at, g, _ in self.watch.seen[-1:])

    def inject(self):
        kinds = list(self.weights)
        kind = self.rng.choices(kinds, [self.weights[k] for k in kinds])[0]
        fault = Fault(kind, time.monotonic())
        fault.alone = self.is_well()
        fault.generation = max(self.watch.top, default=0)
        self.heals, self.loses, self.saved = None, False, -1
        self.ends = kind in ENDS
        fault.whom = kind(self)
        fault.loses, fault.saved = self.loses, self.saved
        if not fault.whom:
            return None
        fault.healed = self.heals or (time.monotonic() if kind in QUIET | {kill_again} else fault.at)
        fault.ends = self.ends
        self.faults.append(fault)
        return fault

    def close(self):
        for timer in self.timers:
            timer.join(70)
