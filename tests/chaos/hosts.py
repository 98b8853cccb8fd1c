"""hosts: hosts that are network namespaces joined by a bridge, each with a host name, an IPC namespace, a /dev/shm of its own that
lasts and a folder for temporary files, and a remote shell to them. Only in a lab of our own: all of it goes with that.
"""
import os
import re
import shutil
import signal
import subprocess
import time

import lab

NET = "10.79.0."


def ip(*words):
    return subprocess.run(["ip"] + list(words), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


class Hosts:
    def __init__(self, folder, count=2):
        self.folder, self.count, self.holders = folder, count, []
        self.why = "" if os.environ.get("TUTTI_LAB") == "1" else "needs root"
        if self.why:
            return
        for words in (("link", "add", "br0", "type", "bridge"), ("addr", "add", NET + "254/24", "dev", "br0"),
                      ("link", "set", "br0", "up")):
            self.why = self.why or ip(*words).stderr.strip()
        for i in self.all():
            self.why = self.why or self.make(i)
        self.rsh = os.path.join(folder, "on")
        with open(self.rsh, "w") as f:
            f.write('#!/bin/bash\nwhile [[ "$1" == -* ]]; do case "$1" in -l|-p|-o) shift 2 ;; *) shift ;; esac; done\nh=${1##*.}\nshift\n'
                    'pids=(0 %s)\nexec nsenter -t ${pids[$h]} -m -u -i -n /bin/bash -c "cd %s; $*"\n' % (
                        " ".join(str(p.pid) for p in self.holders), folder))
        os.chmod(self.rsh, 0o755)

    def all(self):
        return range(1, self.count + 1)

    def make(self, i):
        name = "host%d" % i
        for words in (("netns", "add", name), ("link", "add", "v%d" % i, "type", "veth", "peer", "name", "eth0", "netns", name),
                      ("link", "set", "v%d" % i, "master", "br0", "up"), ("-n", name, "addr", "add", NET + "%d/24" % i, "dev", "eth0"),
                      ("-n", name, "link", "set", "eth0", "up"), ("-n", name, "link", "set", "lo", "up")):
            out = ip(*words)
            if out.returncode:
                return out.stderr.strip()
        os.mkdir(self.tmp(i))
        os.mkdir(self.tmp(i) + "-run", 0o700)
        # It keeps the namespaces, and so what is in /dev/shm, between two worlds.
        self.holders.append(subprocess.Popen(
            ["ip", "netns", "exec", name, "unshare", "-u", "-i", "-m", "bash", "-c",
             "hostname %s; mount -t tmpfs shm /dev/shm; touch %s/%s.up; exec sleep infinity" % (name, self.folder, name)]))
        until = time.monotonic() + 5
        while not os.path.exists(os.path.join(self.folder, name + ".up")) and time.monotonic() < until:
            time.sleep(0.01)
        return ""

    def enter(self, i):
        return ["nsenter", "-t", str(self.holders[i - 1].pid), "-m", "-u", "-i", "-n"]

    def tmp(self, i):
        return os.path.join(self.folder, "tmp%d" % i)

    def shm(self, i):
        return os.path.join("/proc", str(self.holders[i - 1].pid), "root", "dev", "shm")

    def env(self, i, env):
        """What a command of host i has for an environment."""
        return dict(env, HOME=self.folder, TMPDIR=self.tmp(i), XDG_RUNTIME_DIR=self.tmp(i) + "-run")

    # ---- the link of a host ----

    def link(self, i, up):
        ip("link", "set", "v%d" % i, "up" if up else "down")

    def nft(self, i, rules):
        return subprocess.run(["nsenter", "-t", str(self.holders[i - 1].pid), "-n", "nft", "-f", "-"], input=rules, text=True,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0

    def drop(self, i, way, percent=100):
        """Packets that come in ("input") or go out ("output") are lost, without a word. False: there is no nft."""
        device = "iifname" if way == "input" else "oifname"
        some = "" if percent == 100 else "numgen random mod 100 < %d " % percent
        try:
            return self.nft(i, 'table inet chaos {\nchain %s {\ntype filter hook %s priority 0;\n%s "eth0" %sdrop\n}\n}\n' % (
                way, way, device, some))
        except OSError:
            return False

    def narrow(self, i, rate):
        return subprocess.run(["tc", "qdisc", "add", "dev", "v%d" % i, "root", "tbf", "rate", rate, "burst", "16kb", "latency", "200ms"],
                              stderr=subprocess.DEVNULL).returncode == 0

    def mend(self, i):
        self.link(i, True)
        self.nft(i, "table inet chaos\ndelete table inet chaos\n")
        subprocess.run(["tc", "qdisc", "del", "dev", "v%d" % i, "root"], stderr=subprocess.DEVNULL)

    # ---- what is on a host ----

    def inside(self, i):
        """The processes of a host, but for the one that holds it."""
        own = os.readlink("/proc/%d/ns/uts" % self.holders[i - 1].pid)
        found = []
        for p in lab.processes().values():
            try:
                if os.readlink("/proc/%d/ns/uts" % p.pid) == own and p.pid != self.holders[i - 1].pid:
                    found.append(p)
            except OSError:
                pass
        return found

    def signal(self, i, sig):
        found = self.inside(i)
        for p in found:
            lab.send(p.pid, sig)
        return found

    def vaults(self, i):
        return [os.path.join(self.shm(i), name) for name in os.listdir(self.shm(i)) if re.fullmatch(r"tutti-\d+-vault-.*", name)]

    def wipe(self, i, all_of_it=False):
        """The vault is gone; or all that was in memory and in temporary files."""
        for path in self.vaults(i):
            shutil.rmtree(path, ignore_errors=True)
        if not all_of_it:
            return
        for folder in (self.shm(i), self.tmp(i), self.tmp(i) + "-run"):
            for name in os.listdir(folder):
                path = os.path.join(folder, name)
                shutil.rmtree(path, ignore_errors=True)
                if os.path.exists(path):
                    os.unlink(path)

    def slots(self, i):
        found = []
        for folder in self.vaults(i):
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                try:
                    if re.fullmatch(r"slot-\d+", name):
                        found.append(lab.Slot(os.path.join(folder, name)))
                except (OSError, ValueError):
                    pass
        return found

    def holders_of_slots(self, i):
        return {s.pid() for s in self.slots(i)}

    def generation(self, i):
        """The newest of which this host has a committed step; 0: none."""
        return max([look[0] for look in (s.look() for s in self.slots(i)) if look] + [0])

    def left_on(self, i):
        found = ["process %d (%s) of host%d" % (p.pid, p.comm, i) for p in self.inside(i)]
        # Data in common goes with the next run that comes to a host; Open MPI leaves a segment of each killed rank.
        found += ["%s of host%d" % (name, i) for name in os.listdir(self.shm(i))
                  if not name.startswith("vader_segment") and not re.fullmatch(r"tutti-\d+-(data-)?[0-9a-f]{16}", name)]
        return found + ["%s of host%d" % (name, i) for name in os.listdir(self.tmp(i))]

    def left(self, but=()):
        return [what for i in self.all() if i not in but for what in self.left_on(i)]

    def close(self):
        for i in self.all():
            self.signal(i, signal.SIGKILL)
        for h in self.holders:
            h.send_signal(signal.SIGKILL)
            h.wait()
        for i in self.all():
            ip("link", "del", "v%d" % i) # at once; with its namespace it goes later
            ip("netns", "del", "host%d" % i)
        ip("link", "del", "br0")
