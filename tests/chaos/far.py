"""far: what is done to a training on several hosts, one fault after another.

Either the hosts are given (-H), and it needs them all; or it runs on the first one and listens, others join and leave, and it goes on
without those that are cut off, stopped or dead. What is committed is seen by what the program tells: each host has its own vault.
"""
import os
import signal
import subprocess
import time

import faults
import lab
from faults import Disturber, Fault, newest_saved, resize

PORT = 4444
SLOTS = 2  # of the first host
TOLD_S, COMMIT_S = 2.0, 5.0
LEASE_S = 4  # to notice that a host is silent, and until its workers have ended by themselves: nothing is begun before


OUT_S = 30  # a slot that has failed three times in a row is left out for so long, and a run that needs them all waits for it


class Wrong(Exception):
    """What a fault found."""


def workers(d, i):
    return [p for p in d.hosts.inside(i) if p.comm == "tutti" and p.look().env.get("TUTTI_CONTROL_WORLD")]


def others(d):
    """The hosts that take part beside the first, and can be reached."""
    if d.joined:
        return [i for i, a in d.agents.items() if a.poll() is None and i not in d.away]
    return [i for i in d.hosts.all() if i > 1 and i not in d.away]


def some_host(d):
    found = others(d)
    return d.rng.choice(found) if found else None


def kill_on(d, i):
    found = workers(d, i) if i else []
    if not found:
        return None
    p = d.rng.choice(found)
    active = p.pid in d.hosts.holders_of_slots(i)
    if not lab.send(p.pid, signal.SIGKILL):
        return None
    d.ends = d.ends or active
    return "a worker of host%d%s" % (i, "" if active else ", standby")


def kill_far(d):
    return kill_on(d, some_host(d))


def kill_near(d):
    return kill_on(d, 1)


def stop_far(d):
    i = some_host(d)
    found = workers(d, i) if i else []
    if not found:
        return None
    p, pause = d.rng.choice(found), d.rng.choice((0.3, 0.6, 5))
    if not lab.send(p.pid, signal.SIGSTOP):
        return None
    d.back_after(pause, None, lambda: lab.send(p.pid, signal.SIGCONT))
    return "a worker of host%d for %g s" % (i, pause)


def kill_host(d):
    """It is switched off: its processes, and what it had in memory."""
    i = some_host(d)
    if not i or not d.hosts.signal(i, signal.SIGKILL):
        return None
    time.sleep(0.05)
    d.hosts.signal(i, signal.SIGKILL)
    d.hosts.wipe(i, all_of_it=True)
    return "host%d" % i


def freeze(d):
    """All of a host stands still, and goes on when others have taken over long ago."""
    i = some_host(d)
    if not i:
        return None
    pause = d.late.pop() if d.late else d.rng.choice((0.3, 1, 5, 12))
    if not d.hosts.signal(i, signal.SIGSTOP):
        return None
    d.back_after(pause, i, lambda: d.hosts.signal(i, signal.SIGCONT))
    return "host%d for %g s" % (i, pause)


# ---- links ----

def cut(d):
    """Both ways: back before anybody is taken for dead, before its workers have ended by themselves, or after."""
    i, pause = some_host(d), d.rng.choice((0.2, 2, 9))
    if not i:
        return None
    d.hosts.link(i, False)
    d.back_after(pause, i, lambda: d.hosts.mend(i))
    return "host%d for %g s" % (i, pause)


def cut_one_way(d, way):
    i, pause = some_host(d), d.rng.choice((0.2, 2, 9))
    if not i or not d.hosts.drop(i, way):
        return None
    d.back_after(pause, i, lambda: d.hosts.mend(i))
    return "host%d for %g s" % (i, pause)


def cut_to(d):
    return cut_one_way(d, "input")


def cut_from(d):
    return cut_one_way(d, "output")


def lose_packets(d):
    i, percent = some_host(d), d.rng.choice((3, 10, 30))
    if not i or not d.hosts.drop(i, d.rng.choice(("input", "output")), percent):
        return None
    d.back_after(3, i, lambda: d.hosts.mend(i))
    return "host%d, %d %%" % (i, percent)


def slow_link(d):
    i, rate = some_host(d), d.rng.choice(("500kbit", "2mbit"))
    if not i or not d.hosts.narrow(i, rate):
        return None
    d.back_after(3, i, lambda: d.hosts.mend(i))
    return "host%d, %s" % (i, rate)


# ---- the vault ----

def wipe_one(d):
    """One host loses what it had in memory, and its world a worker. Others have it, too."""
    having = [i for i in [1] + others(d) if d.hosts.generation(i) >= d.generation()]
    victims = [p for i in having for p in workers(d, i) if p.pid in d.hosts.holders_of_slots(i)]
    if len(having) < 2 or not victims:
        return None
    i = d.rng.choice(having)
    d.hosts.wipe(i)
    d.ends = lab.send(d.rng.choice(victims).pid, signal.SIGKILL)
    return "host%d" % i


def wipe_all(d):
    if newest_saved(d.t.run) < 0 or d.away:  # who is away has a copy
        return None
    d.saved, d.loses, d.ends = newest_saved(d.t.run), True, True
    for i in d.hosts.all():
        d.hosts.wipe(i)
    for i in d.hosts.all():
        for p in workers(d, i):
            lab.send(p.pid, signal.SIGKILL)
    return "the vaults of all"


# ---- hosts that come and go ----

def heard_of(d, i, what, since, limit_s):
    until = time.monotonic() + limit_s * d.slack()
    while time.monotonic() < until and not d.t.ended():
        if any(e.get("host") == "host%d" % i and e.get("what") == what for _, e in d.t.heard("host", since)):
            return True
        time.sleep(0.01)
    return d.t.ended()


def join(d):
    """Half of the time somebody dies while it is taken in."""
    absent = [i for i in d.hosts.all() if i > 1 and i not in d.away and (i not in d.agents or d.agents[i].poll() is not None)]
    if not absent:
        return None
    i, slots, since, before = d.rng.choice(absent), d.rng.choice((1, 1, 2)), time.monotonic(), d.generation()
    log = open(os.path.join(d.hosts.folder, "join%d.log" % i), "ab")
    d.agents[i] = subprocess.Popen(
        d.hosts.enter(i) + [d.t.program, "join", "tcp://10.79.0.1:%d" % PORT, "--slots", str(slots), "--wait", "90s"],
        stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=d.hosts.env(i, d.t.env), start_new_session=True)
    log.close()
    if not heard_of(d, i, "joined", since, 15):
        raise Wrong("host%d did not join in %.0f s" % (i, 15 * d.slack()))
    kill = None
    if d.rng.random() < 0.5:
        time.sleep(d.rng.uniform(0, 0.6))
        kill = kill_on(d, d.rng.choice([1] + others(d)))
    d.await_generation(before, "host%d had joined" % i)
    return "host%d, %d slots%s" % (i, slots, ", and %s" % kill if kill else "")


def leave(d):
    """It says so itself, or is sent away; half of the time somebody dies meanwhile."""
    i = some_host(d)
    if not i or not d.joined:
        return None
    agent, here = d.agents[i], d.rng.random() < 0.5
    words = [d.t.program, "leave"] + ([] if here else [d.t.run, "host%d" % i])
    asking = subprocess.Popen(d.hosts.enter(i if here else 1) + words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              stdin=subprocess.DEVNULL, env=d.hosts.env(i, d.t.env) if here else d.t.env)
    kill = None
    if d.rng.random() < 0.5:
        time.sleep(d.rng.uniform(0, 0.3))
        kill = kill_on(d, d.rng.choice((1, i)))
    try:
        said = asking.communicate(timeout=30 * d.slack())[0]
        code = agent.wait(30 * d.slack())
    except subprocess.TimeoutExpired:
        asking.kill()
        raise Wrong("host%d did not leave in %.0f s%s" % (i, 30 * d.slack(), ", with %s killed" % kill if kill else ""))
    if (asking.returncode or code) and not d.t.ended():
        raise Wrong("host%d left with %d, its agent with %d: %s" % (i, asking.returncode, code, said.strip()[-200:]))
    until = time.monotonic() + 3 * d.slack()
    while d.hosts.left_on(i) and time.monotonic() < until:
        time.sleep(0.05)
    if d.hosts.left_on(i):
        raise Wrong("9: left where a host has left: %s" % ", ".join(d.hosts.left_on(i)[:4]))
    return "host%d%s%s" % (i, " by itself" if here else " is sent away", ", and %s" % kill if kill else "")


def kill_agent(d):
    """What it had begun there ends with it."""
    i = some_host(d)
    if not i or not d.joined:
        return None
    d.agents[i].kill()
    d.agents[i].wait()
    until = time.monotonic() + (COMMIT_S + LEASE_S) * d.slack()
    while d.hosts.inside(i) and time.monotonic() < until:
        time.sleep(0.05)
    if d.hosts.inside(i):
        raise Wrong("9: processes of a host whose agent was killed live on: %s" % ", ".join(
            "%d (%s)" % (p.pid, p.comm) for p in d.hosts.inside(i)[:4]))
    d.hosts.wipe(i, all_of_it=True)  # its vault stays, rightly: it may come back
    return "host%d" % i


def kill_supervisor(d):
    for i in d.hosts.all():
        d.parted[i] = time.monotonic()
    return faults.kill_supervisor(d)


GIVEN = {cut: 2, cut_to: 2, cut_from: 2, lose_packets: 1, slow_link: 1, kill_far: 2, kill_near: 2, stop_far: 1, kill_host: 1, freeze: 2,
         wipe_one: 2, wipe_all: 1, kill_supervisor: 1}
JOINED = {cut: 2, cut_to: 2, cut_from: 2, lose_packets: 1, slow_link: 1, kill_far: 3, kill_near: 2, stop_far: 1, kill_host: 2, freeze: 2,
          wipe_one: 3, wipe_all: 1, kill_supervisor: 1, join: 14, leave: 6, kill_agent: 2, resize: 1}


class FarDisturber(Disturber):
    """Each fault is to be over before the next: the run goes on, with a host that is away or without."""

    def __init__(self, t, hosts, rng, joined, slack, script=()):
        super().__init__(t, None, rng, 0, joined, JOINED if joined else GIVEN, (1.0,))
        self.weights = dict(JOINED if joined else GIVEN)
        self.hosts, self.joined, self.least_slack, self.script = hosts, joined, slack, list(script)
        self.agents, self.away, self.sampled = {}, set(), 0.0
        self.parted = {}  # host: when it was last cut off from the run

    def slack(self):
        return max(self.least_slack, 1 + self.crowd[-1])

    def back_after(self, pause, host, call):
        """A host is away for so long, or None of them. Where all are needed, the fault heals then."""
        def back():
            try:
                call()
            except ProcessLookupError:
                pass
            self.away.discard(host)
            self.parted[host] = time.monotonic()
        if host:
            self.away.add(host)
        self.later(pause, back)
        if not self.joined or pause <= 3:
            self.heals = time.monotonic() + pause

    def generation(self):
        text = lab.read(os.path.join(self.t.run, "generation"), "r").strip()
        return int(text) if text.isdigit() else 0

    def step(self, since=0.0):
        for at, e in reversed(self.t.events):
            if at < since:
                break
            if e.get("event") in ("step", "epoch"):
                return e["step"]
        return -1

    def await_step(self, beyond, limit_s, since=0.0):
        until = time.monotonic() + limit_s
        while self.step(since) <= beyond and not self.t.ended() and time.monotonic() < until:
            if time.monotonic() - self.sampled >= 1:
                self.sampled = time.monotonic()
                self.t.sample()
            time.sleep(0.01)
        self.crowd.append(lab.others())
        return self.step(since) > beyond or self.t.ended()

    def await_generation(self, before, why):
        until = time.monotonic() + 15 * self.slack()
        while self.generation() <= before and not self.t.ended() and time.monotonic() < until:
            time.sleep(0.01)
        if self.generation() <= before and not self.t.ended():
            raise Wrong("no new generation in %.0f s after %s" % (15 * self.slack(), why))

    def choose(self):
        if self.script:
            return self.script.pop(0)
        kinds = list(self.weights)
        return self.rng.choices(kinds, [self.weights[k] for k in kinds])[0]

    def inject(self):
        """One fault, until the run is well again. None: there was nobody to hit."""
        f = Fault(self.choose(), time.monotonic())
        self.heals, self.loses, self.ends, self.saved, f.generation = None, False, False, -1, self.generation()
        try:
            f.whom = f.kind(self)
        except Wrong:
            f.whom = "?"
            self.faults.append(f)
            raise
        if not f.whom:
            return None
        f.ends, f.loses, f.saved = self.ends, self.loses, self.saved
        f.healed = self.heals or time.monotonic()
        self.faults.append(f)
        limit_s = (COMMIT_S + LEASE_S) * self.slack() + max(0, f.healed - time.monotonic())
        if not self.joined and f.healed - f.at > COMMIT_S:
            limit_s += OUT_S
        if f.ends or f.loses:
            self.await_generation(f.generation, "%s (%s)" % (f.name, f.whom))
        if not self.await_step(-1 if f.loses else self.step() + 20, limit_s, max(f.healed, time.monotonic())):
            raise Wrong("8: no step within %.1f s after %s (%s)" % (limit_s, f.name, f.whom))
        f.back = time.monotonic() - f.at
        told = self.t.heard("cause", f.at)
        f.told = told[0][0] - f.at if told else None
        limit_s = (TOLD_S if f.kind is kill_near else TOLD_S + LEASE_S) * self.slack()
        if f.ends and f.kind is not kill_supervisor and not (f.told and f.told <= limit_s):
            raise Wrong("8: %s (%s) was not told in %.1f s" % (f.name, f.whom, limit_s))
        return f

    def go(self, count, faults):
        """All of them, then the end. Returns what is wrong."""
        if not self.await_step(10, 60):
            return ["the training did not begin: %s" % lab.read(self.t.errors, "r").strip()[-300:]]
        barren = 0
        try:
            while len(self.faults) < count and not self.t.ended() and barren < 100:
                before = len(self.faults)
                self.inject()
                barren = 0 if len(self.faults) > before else barren + 1
                time.sleep(self.rng.uniform(0.1, 0.6) if not barren else 0.02)
        except Wrong as e:
            return [str(e)]
        finally:
            faults += self.faults
        return [] if self.t.wait(240) is not None else ["the training did not end: step %d" % self.step()]

    def close(self):
        super().close()
        for i in self.hosts.all():
            self.hosts.mend(i)

    def is_with_it(self, i):
        """Was host i heard of after it was last lost, so that it knows of the end? Else its agent goes on looking for the run."""
        joined = [at for at, e in self.t.heard("host") if e.get("host") == "host%d" % i and e.get("what") == "joined"]
        return bool(joined) and joined[-1] > self.parted.get(i, 0)

    def left(self):
        """After the run: nothing anywhere, agents ended. One that could not hear of the end is ended here."""
        strays = [i for i, a in self.agents.items() if a.poll() is None and not self.is_with_it(i)]
        for i in strays:
            self.hosts.signal(i, signal.SIGKILL)
            self.hosts.wipe(i, all_of_it=True)
        until = time.monotonic() + (COMMIT_S + LEASE_S) * self.slack()
        while time.monotonic() < until:
            for a in self.agents.values():
                a.poll()
            if not self.hosts.left():
                break
            time.sleep(0.1)
        return self.hosts.left()
