"""What the tests of faults share: a small job, runs with faults, and what must hold after each."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TIMEOUT_S = 60
HERE = os.path.dirname(os.path.abspath(__file__))

# Dropout, batches in an order of their own, validation, early stopping's memory, a schedule: all that has a state.
JOB = """\
name: small
model:
  input: [8]
  layers:
    - dense: {out: 16}
    - relu
    - dropout: {p: 0.1}
    - dense: {out: 4}
  loss: softmax_cross_entropy
data:
  train: {format: synth, kind: blobs, count: 600, classes: 4}
  val: {split: 0.1}
train:
  epochs: 3
  batch: 60
  optimizer: {adam: {lr: 0.01}}
  schedule: {cosine: {}}
  threads: 1
  log_every: 1
parallel: {exact: true, grains: 6, timeout: 20s}
checkpoint: {every: 3, keep: 2, best: val.accuracy max}
"""

# Tables, which are changed in place; rows are named again and again, and some for the first time.
TABLES = """\
name: clicks
model:
  input: {features: [6], ids: 8}
  layers: [dlrm: {rows: [500, 20, 9, 300, 50, 2000, 7, 1], dim: 8, bottom: [16], top: [16]}]
  loss: bce
data:
  train: {format: synth, kind: clicks, count: 540}
  val: {count: 60}
train:
  epochs: 3
  batch: 60
  optimizer: {adam: {lr: 0.01}}
  tables: {adagrad: {lr: 0.05}}
  threads: 1
  log_every: 1
parallel: {exact: true, grains: 6, timeout: 20s}
checkpoint: {every: 3, keep: 2, best: val.loss min}
"""


class Failed(Exception):
    pass


def expect(condition, what):
    if not condition:
        raise Failed(what)


def alone(purpose):
    """Goes on in a mount namespace of our own, with a /dev/shm that nobody else uses; without rights for that, ends."""
    if os.environ.get("TUTTI_TEST_ALONE"):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", "/dev/shm"], check=True)
        return
    how = ["unshare", "-m"] if os.getuid() == 0 else ["unshare", "-rm"]
    probe = subprocess.run(how + ["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], capture_output=True, text=True)
    if probe.returncode:
        print("skip %s: no mount namespace: %s" % (purpose, probe.stderr.strip()))
        print("0 passed, 0 failed, 1 skipped")
        sys.exit(0)
    os.execvpe("unshare", how + [sys.executable] + sys.argv, dict(os.environ, TUTTI_TEST_ALONE="1"))


class Case:
    """A folder of its own with the job in it, where runs leave their marks."""

    def __init__(self, program, job=JOB):
        self.program = os.path.abspath(program)
        self.folder = tempfile.mkdtemp()
        self.tmp = os.path.join(self.folder, "tmp")
        self.hit = os.path.join(self.folder, "hit")
        os.mkdir(self.tmp)
        os.mkdir(self.hit)
        with open(self.path("job.yaml"), "w") as f:
            f.write(job)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def environment(self, points="", **more):
        env = dict(os.environ, TMPDIR=self.tmp, TUTTI_FAILPOINT_DIR=self.hit, OMPI_ALLOW_RUN_AS_ROOT="1",
                   OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", **more)
        for name in ("TUTTI_DATA", "TUTTI_KERNELS", "TUTTI_LOG", "TUTTI_FAILPOINTS"):
            env.pop(name, None)
        if points:
            env["TUTTI_FAILPOINTS"] = points
        return env

    def start(self, *args, points="", **more):
        return subprocess.Popen([self.program] + list(args), cwd=self.folder, env=self.environment(points, **more),
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                start_new_session=True)

    def end(self, process):
        try:
            self.out, self.err = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            self.out, self.err = process.communicate()
            raise Failed("not over after %d s: %s" % (TIMEOUT_S, self.err[-2000:]))
        return process.returncode

    def run(self, want, *args, points="", **more):
        code = self.end(self.start(*args, points=points, **more))
        expect(code == want, "tutti %s: exit code %s, wanted %s: %s" % (" ".join(args), code, want, self.err[-2000:]))

    def processes(self):
        """Those that carry our mark in their environment."""
        mark = ("TUTTI_FAILPOINT_DIR=" + self.hit).encode()
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/environ" % pid, "rb") as f:
                    if mark in f.read().split(b"\0"):
                        found.append(int(pid))
            except OSError:
                pass
        return found

    def wait_gone(self, seconds=5):
        until = time.monotonic() + seconds
        while self.processes():
            if time.monotonic() > until:
                left = self.processes()
                raise Failed("left behind: processes %s: %s" % (left, [name_of(p) for p in left]))
            time.sleep(0.01)

    def fired(self):
        return set(os.listdir(self.hit))

    def summary(self, run):
        with open(self.path(run, "summary.json")) as f:
            return json.load(f)

    def sha(self, run):
        return self.summary(run)["weights_sha256"]

    def check_run(self, run, sha, lost=False):
        """What holds of a run that is done, however it came there; `lost`: but for metrics, which the disk did not take."""
        s = self.summary(run)
        expect(s["status"] == "done", "status %s" % s["status"])
        expect(s["weights_sha256"] == sha, "other weights than those of the undisturbed run")
        if os.path.exists(self.path(run, "ledger.jsonl")):
            j = subprocess.run([self.program, "ledger", self.path(run)], capture_output=True, text=True)
            expect(j.returncode == 0 and "not ended" not in j.stdout, "the ledger: %s" % j.stdout.strip())
        v = subprocess.run([self.program, "ckpt", "verify", self.path(run)], capture_output=True, text=True)
        expect(v.returncode == 0, "checkpoints: %s%s" % (v.stdout, v.stderr))
        with open(self.path(run, "metrics.jsonl")) as f:
            rows = [json.loads(line) for line in f]
        steps = [r["step"] for r in rows if r.get("split") == "train"]
        judged = [r["step"] for r in rows if r.get("split") == "val"]
        expect(steps == sorted(set(steps)), "metrics.jsonl has a step twice, or out of order: %s" % steps)
        expect(lost or steps == list(range(1, s["steps"] + 1)), "metrics.jsonl lacks a step: %s" % steps)
        expect(lost or set(judged) >= set(range(9, s["steps"] + 1, 9)), "metrics.jsonl lacks a validation: %s" % judged)
        loose = [os.path.join(d, n) for d, dirs, files in os.walk(self.path(run)) for n in dirs + files
                 if n.endswith((".tmp", ".old", ".parts"))]
        expect(not loose, "left behind in the run folder: %s" % loose)

    def check_clean(self):
        self.wait_gone()
        expect(not os.listdir(self.tmp), "left behind in TMPDIR: %s" % os.listdir(self.tmp))
        # Open MPI makes one for a moment when it starts, and one that is killed then leaves it.
        left = [n for n in os.listdir("/dev/shm") if not n.startswith("open_mpi.")]
        expect(not left, "left behind in /dev/shm: %s" % left)

    def close(self):
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        shutil.rmtree(self.folder, ignore_errors=True)
        clear_shm()


def clear_shm():
    for name in os.listdir("/dev/shm"):
        path = os.path.join("/dev/shm", name)
        shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.unlink(path)


def age_shm():
    """What a supervisor that died has left there is swept by the next run when it has been so for a minute: here now."""
    long_ago = time.time() - 120
    for name in os.listdir("/dev/shm"):
        os.utime(os.path.join("/dev/shm", name), (long_ago, long_ago))


def name_of(pid):
    try:
        with open("/proc/%d/cmdline" % pid) as f:
            return f.read().replace("\0", " ")[:120]
    except OSError:
        return "gone"


class Tally:
    """One line a failure, and the closing line."""

    def __init__(self, word):
        self.word, self.passed, self.failed, self.begun = word, 0, 0, time.monotonic()

    def wanted(self, name):
        return self.word in name

    def case(self, name, do):
        begun = time.monotonic()
        try:
            do()
        except (Failed, OSError, ValueError, KeyError, subprocess.SubprocessError) as e:
            self.failed += 1
            print("FAIL %s: %s" % (name, e))
        else:
            self.passed += 1
            if os.environ.get("VERBOSE"):
                print("%5.2f s  %s" % (time.monotonic() - begun, name))
        sys.stdout.flush()

    def close(self):
        print("%d passed, %d failed, 0 skipped in %.0f s" % (self.passed, self.failed, time.monotonic() - self.begun))
        sys.exit(1 if self.failed else 0)
