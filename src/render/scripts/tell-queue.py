# Tells the agent of this cluster what the queue asks for, as soon as that changes, and lets no more jobs start on brokers
# that are about to leave. The start script of the lead runs it beside the broker: `flux python tell-queue.py PORT
# CONFIGROOT`. It decides nothing. Python looks for modules beside it first, so it has the name of none.
#
# Who connects says a version and a nonce, and gets the same. Then it shows that it knows the certificate of the
# instance, by a code (HMAC) over both nonces, and hears frames: kind, length and text, and a code over these, the nonces
# and the number of the frame. It may say on which ranks no more jobs start: length and text, and such a code. That counts
# for some time: an agent that leads no more, and is not known to be gone, closes nothing for long.
#
# Who listens has a process: where nobody listens, Flux is not asked. One agent listens, and beside it perhaps one that leads
# no more: a third takes the place of the first, which may wait for an answer for long. Callers that have not shown yet who
# they are share the first process: they cost a socket. That one has loaded Flux, so a listener hears of the queue at once,
# and shares that memory.
import errno
import glob
import hashlib
import hmac
import json
import os
import select
import signal
import socket
import stat
import struct
import sys
import time

try:
    import flux.job
    from flux.constants import FLUX_RPC_STREAMING, FLUX_USERID_UNKNOWN
    from flux.idset import IDset
    from flux.resource import resource_list
except ImportError as error:
    sys.exit(str(error))

VERSION = 1
ALIVE, PICTURE, TROUBLE = 0, 1, 2
MOST, KINDS, RECENT, CALLERS, LISTENERS = 2000, 500, 20, 100, 2
# Jobs whose jobspecs are in memory at once: with an environment or a batch script, one may have 100 kB.
AT_ONCE = 50
# Of all kinds of jobs together: the agent takes 1 MiB at a time.
BYTES = 512 << 10
# Seconds: in which a caller shows who it is, between two looks without news, between two signs of life, in which
# events are one, between two attempts.
INTRODUCTION, EVERY, SIGN, SETTLE, AGAIN = 10, 5, 2, 0.1, 0.5
# For how long a wish counts that is not said again, and how long nobody listens before all is opened that was closed.
LASTS, ALONE = 45, 120
# Why ranks are drained. What others have drained stays as it is.
LEAVES = "tributary: the burst is about to leave"


def waiting_jobs(handle):
    """The most urgent of those that only wait for resources: id and queue.

    A queue that is stopped starts nothing, wherever. The one that has no name is asked for without one.
    """
    sched, attributes = 8, ["urgency", "queue"]

    def listed(most, queue=None):
        return flux.job.job_list(handle, most, attributes, FLUX_USERID_UNKNOWN, states=sched, queue=queue).get_jobs()

    def starts(name):
        try:
            return handle.rpc("job-manager.queue-status", {"name": name} if name else {}).get()["start"]
        except (OSError, KeyError):
            return True

    jobs = listed(MOST)
    names = {job.get("queue") for job in jobs}
    if len(jobs) >= MOST and None not in names:
        # A long queue does not hide the others.
        names = set(handle.rpc("job-manager.queue-list").get()["queues"])
        jobs = [job for name in sorted(names) for job in listed(max(1, MOST // len(names)), name)]
    started = {name for name in names if starts(name)}
    return [(job["id"], job.get("queue")) for job in jobs if job.get("queue") in started and job["urgency"] > 0]


def kind_of(spec):
    """What a job asks for, as JSON."""
    system = spec.get("attributes", {}).get("system", {})
    burstable = system.get("burstable", False)
    if isinstance(burstable, str):
        burstable = burstable.lower() not in ("", "0", "false", "no")
    asks = {"burstable": bool(burstable), "resources": spec.get("resources")}
    asks["constraints"] = system.get("constraints")
    return json.dumps(asks, sort_keys=True)


def close(handle, ranks):
    """Lets no more jobs start on these ranks; those that run there go on."""
    handle.rpc("resource.drain", {"targets": ranks, "reason": LEAVES, "mode": "update"}, nodeid=0).get()


def open_again(handle, closed):
    """Lets jobs start again on all that was closed and is none of these ranks."""
    for ranks, drained in handle.rpc("resource.status", nodeid=0).get()["drain"].items():
        ranks = IDset(ranks) - IDset(closed)
        if drained["reason"] == LEAVES and ranks:
            handle.rpc("resource.undrain", {"targets": str(ranks)}, nodeid=0).get()


def look(handle, known, closed=""):
    """What the queue asks for, as JSON. `known` has the kind of each job that waited at the last look, and is brought up to
    date: another queue may give a job other constraints. No more jobs start on the ranks `closed`.

    The attributes and states are those of flux-core's job-list (RFC 43, RFC 21); "up" is what its scheduler may use:
    ranks that are online and not drained. Jobs of all users count, and jobs that ask for the same are told once, with
    their number.
    """
    inactive = 64
    resources = resource_list(handle).get()
    still_open = resources.up.ranks & IDset(closed)
    if still_open:
        try:
            close(handle, str(still_open))
        except OSError:
            # The picture says so: they are up.
            pass
        # A job may be about to start there: it is seen before anybody hears that nothing runs.
        time.sleep(SETTLE)
        resources = resource_list(handle).get()
    busy, used = IDset(resources.allocated.ranks), []
    for entry in resources.allocated.to_dict()["execution"]["R_lite"]:
        used.append([entry["rank"], IDset(entry["children"]["core"]).count()])
    # A job that came and went between two looks was there all the same.
    since = time.time() - RECENT
    for job in flux.job.job_list(handle, MOST, ["ranks"], FLUX_USERID_UNKNOWN, states=inactive, since=since).get_jobs():
        if job.get("ranks"):
            busy.add(job["ranks"])
    waiting = waiting_jobs(handle)
    for gone in known.keys() - set(waiting):
        del known[gone]
    new = {job: (job, queue) for job, queue in waiting if (job, queue) not in known}
    for first in range(0, len(new), AT_ONCE):
        part = list(new)[first : first + AT_ONCE]
        for found in flux.job.JobKVSLookup(handle, part, ["jobspec"]).data():
            known[new[found["id"]]] = kind_of(found.get("jobspec") or {})
    counts, size = {}, 0
    # A job that ended meanwhile has none.
    for kind in filter(None, map(known.get, waiting)):
        if kind not in counts and len(counts) < KINDS and size + len(kind) <= BYTES:
            counts[kind], size = 0, size + len(kind)
        if kind in counts:
            counts[kind] += 1
    pending = [{"count": count, **json.loads(kind)} for kind, count in counts.items()]
    return json.dumps({"up": str(resources.up.ranks), "busy": str(busy), "used": used, "pending": pending})


def news(journal, seconds):
    """Whether something happens to a job within that time. Where Flux keeps no journal, something may have happened."""
    try:
        journal.wait_for(seconds).get()
    except OSError as error:
        if error.errno == errno.ENOSYS:
            time.sleep(seconds)
            return True
        if error.errno != errno.ETIMEDOUT:
            raise
        return False
    journal.reset()
    return True


def broker(configroot):
    sockets = [path for path in glob.glob(configroot + "/run/flux/local*") if stat.S_ISSOCK(os.stat(path).st_mode)]
    if not sockets:
        raise OSError("the broker of this pod has no socket yet")
    return flux.Flux("local://" + sockets[0])


def follow(configroot, wished):
    """What is to be said of one broker, as long as it lives. `wished()`: on which ranks no more jobs start, if that is known."""
    handle = broker(configroot)
    journal = handle.rpc("job-manager.events-journal", {"full": False}, flags=FLUX_RPC_STREAMING)
    said, known = None, {}
    while True:
        began = time.monotonic()
        closed = wished()
        if closed is not None:
            open_again(handle, closed)
        picture = look(handle, known, closed or "")
        if picture != said:
            said = picture
            yield PICTURE, picture
        looked = time.monotonic()
        # A long queue is not looked at all the time.
        rested = looked + min(EVERY, 2 * (looked - began))
        end = looked + EVERY
        while time.monotonic() < end and closed == wished():
            if news(journal, SIGN):
                end = max(rested, time.monotonic() + SETTLE)
                while time.monotonic() < end:
                    news(journal, max(0, end - time.monotonic()))
            yield ALIVE, ""


def tell(configroot, wished):
    """What there is to say, for ever."""
    while True:
        try:
            yield from follow(configroot, wished)
        except Exception as error:
            yield TROUBLE, str(error) or repr(error)
        time.sleep(AGAIN)


def key(configroot):
    """What both sides make of the secret key of the certificate."""
    with open(configroot + "/curve/curve.cert") as certificate:
        pairs = [[part.strip(' \t\n"') for part in line.split("=", 1)] for line in certificate if "=" in line]
    return hmac.new(dict(pairs)["secret-key"].encode(), b"tributary: queue, version 1", hashlib.sha256).digest()


class Caller:
    """Somebody who has connected, and has to show that it knows the certificate."""

    def __init__(self, connection, configroot):
        connection.setblocking(False)
        self.connection, self.configroot, self.end = connection, configroot, time.monotonic() + INTRODUCTION
        self.said, self.ours, self.secret = b"", os.urandom(32), key(configroot)
        self.closed, self.wishes, self.wish, self.wished = None, 0, b"", time.monotonic()

    def code(self, side, text):
        return hmac.new(self.secret, side + self.said[1:33] + self.ours + text, hashlib.sha256).digest()

    def introduce(self):
        """Reads what is there. Whether that shows that it knows the certificate."""
        is_hello = len(self.said) < 33
        more = self.connection.recv((33 if is_hello else 65) - len(self.said))
        if not more:
            raise OSError("it hung up")
        self.said += more
        if is_hello and len(self.said) == 33:
            self.connection.sendall(bytes([VERSION]) + self.ours)
        if len(self.said) < 65:
            return False
        if self.said[0] != VERSION or not hmac.compare_digest(self.said[33:], self.code(b"agent", b"")):
            raise OSError("it has another version or certificate")
        return True

    def listen(self):
        self.connection.settimeout(INTRODUCTION)
        for number, (kind, text) in enumerate(tell(self.configroot, self.wishes_now)):
            self.hear()
            frame = struct.pack(">BI", kind, len(text.encode())) + text.encode()
            self.connection.sendall(frame + self.code(b"queue", struct.pack(">Q", number) + frame))

    def hear(self):
        """Reads what it wishes, if it has said that."""
        while select.select([self.connection], [], [], 0)[0]:
            more = self.connection.recv(1 << 16)
            if not more:
                raise OSError("it hung up")
            self.wish += more
            while self.take_wish():
                pass
            if len(self.wish) > BYTES:
                raise OSError("it says too much at once")

    def take_wish(self):
        """Whether all of a wish was there."""
        end = 4 + int.from_bytes(self.wish[:4], "big")
        if len(self.wish) < end + 32:
            return False
        frame, code = self.wish[:end], self.wish[end : end + 32]
        if not hmac.compare_digest(code, self.code(b"close", struct.pack(">Q", self.wishes) + frame)):
            raise OSError("it does not know the certificate")
        self.closed, self.wishes, self.wish = frame[4:].decode(), self.wishes + 1, self.wish[end + 32 :]
        self.wished = time.monotonic()
        return True

    def wishes_now(self):
        """None: it is not known any more, or not yet. Agents that know nothing of wishes close nothing."""
        if time.monotonic() < self.wished + LASTS:
            return self.closed
        return None if self.wishes else ""


class Program:
    def __init__(self, port, configroot):
        self.configroot, self.callers, self.listeners = configroot, {}, []
        # When all is opened again, if nobody listens until then.
        self.alone = time.monotonic() + ALONE
        both = socket.has_dualstack_ipv6() if hasattr(socket, "has_dualstack_ipv6") else False
        self.server = socket.socket(socket.AF_INET6 if both else socket.AF_INET)
        self.server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if both:
            self.server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.server.bind(("", port))
        self.server.listen(CALLERS)
        self.server.setblocking(False)

    def run(self):
        while True:
            self.forget()
            self.open_if_alone()
            for ready in select.select([self.server, *self.callers], [], [], 1)[0]:
                if ready is self.server:
                    self.accept()
                elif ready in self.callers:
                    self.hear(self.callers[ready])
            for caller in [caller for caller in self.callers.values() if caller.end < time.monotonic()]:
                self.leave(caller)

    def accept(self):
        try:
            caller = Caller(self.server.accept()[0], self.configroot)
        except (OSError, KeyError):
            # It hung up, or there is no certificate: it comes again.
            return
        self.callers[caller.connection] = caller
        if len(self.callers) > CALLERS:
            # Strangers cannot keep an agent out: that one is through in a moment, and the oldest has had its time.
            self.leave(next(iter(self.callers.values())))

    def hear(self, caller):
        try:
            if caller.introduce():
                self.begin(caller)
                self.leave(caller)
        except BlockingIOError:
            pass
        except OSError:
            self.leave(caller)

    def leave(self, caller):
        del self.callers[caller.connection]
        caller.connection.close()

    def forget(self):
        """Forgets listeners that have ended."""
        self.listeners = [one for one in self.listeners if not os.waitpid(one, os.WNOHANG)[0]]

    def open_if_alone(self):
        """Lets jobs start on what was closed for somebody who listens no more."""
        if self.alone and self.listeners:
            self.alone = time.monotonic() + ALONE
        if self.alone and time.monotonic() > self.alone:
            self.alone = None
            self.fork(lambda: open_again(broker(self.configroot), ""))

    def begin(self, caller):
        self.forget()
        self.alone = time.monotonic() + ALONE
        if len(self.listeners) >= LISTENERS:
            os.kill(self.listeners[0], signal.SIGKILL)
            os.waitpid(self.listeners.pop(0), 0)
        self.fork(caller.listen, caller)

    def fork(self, does, caller=None):
        """A process for what needs Flux."""
        process = os.fork()
        if process != 0:
            self.listeners.append(process)
            return
        # The port is the program's, which may be started again while somebody listens.
        self.server.close()
        for other in self.callers.values():
            if other is not caller:
                other.connection.close()
        try:
            does()
        except OSError:
            # It hung up, or there is no broker: nothing to speak of.
            pass
        finally:
            os._exit(0)


if __name__ == "__main__":
    Program(int(sys.argv[1]), sys.argv[2]).run()
