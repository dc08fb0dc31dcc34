# Tells the agent of this cluster what the queue asks for, as soon as that changes. The start script of the lead runs it
# beside the broker: `flux python queue.py PORT CONFIGROOT`. It decides nothing.
#
# Who connects says a version and a nonce, and gets the same. Then it shows that it knows the certificate of the
# instance, by a code (HMAC) over both nonces, and hears frames: kind, length and text, and a code over these, the nonces
# and the number of the frame.
#
# Each that listens has a process, which alone loads Flux: where nobody listens, little memory is used, and Flux is not
# asked. Callers that have not shown yet who they are share the first process: they cost a socket.
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

VERSION = 1
ALIVE, PICTURE, TROUBLE = 0, 1, 2
MOST, KINDS, RECENT, CALLERS = 2000, 500, 20, 100
# Of all kinds of jobs together: the agent takes 1 MiB at a time.
BYTES = 512 << 10
# Seconds: in which a caller shows who it is, between two looks without news, between two signs of life, in which
# events are one, between two attempts.
INTRODUCTION, EVERY, SIGN, SETTLE, AGAIN = 10, 5, 2, 0.1, 2


def look(handle):
    """What the queue asks for, as JSON.

    The attributes and states are those of flux-core's job-list (RFC 43, RFC 21); "up" is what its scheduler may use:
    ranks that are online and not drained. Jobs of all users count, and jobs that ask for the same are told once, with
    their number.
    """
    import flux
    import flux.job
    from flux.idset import IDset
    from flux.resource import resource_list

    sched, inactive, anybody = 8, 64, flux.constants.FLUX_USERID_UNKNOWN
    resources = resource_list(handle).get()
    busy, used = IDset(resources.allocated.ranks), []
    for entry in resources.allocated.to_dict()["execution"]["R_lite"]:
        used.append([entry["rank"], IDset(entry["children"]["core"]).count()])
    # A job that came and went between two looks was there all the same.
    since = time.time() - RECENT
    for job in flux.job.job_list(handle, MOST, ["ranks"], anybody, states=inactive, since=since).get_jobs():
        if job.get("ranks"):
            busy.add(job["ranks"])
    waiting = flux.job.job_list(handle, MOST, ["urgency", "queue"], anybody, states=sched).get_jobs()
    # A queue that is stopped starts nothing, wherever. The one that has no name is asked for without one.
    started = {}
    for name in {job.get("queue") for job in waiting}:
        try:
            started[name] = handle.rpc("job-manager.queue-status", {"name": name} if name else {}).get()["start"]
        except (OSError, KeyError):
            started[name] = True
    waiting = [job["id"] for job in waiting if started[job.get("queue")] and job["urgency"] > 0]
    pending, size = {}, 0
    for found in flux.job.JobKVSLookup(handle, waiting, ["jobspec"]).data() if waiting else []:
        spec = found.get("jobspec") or {}
        system = spec.get("attributes", {}).get("system", {})
        burstable = system.get("burstable", False)
        if isinstance(burstable, str):
            burstable = burstable.lower() not in ("", "0", "false", "no")
        asks = {"burstable": bool(burstable), "resources": spec.get("resources")}
        asks["constraints"] = system.get("constraints")
        kind = json.dumps(asks, sort_keys=True)
        if kind not in pending and len(pending) < KINDS and size + len(kind) <= BYTES:
            pending[kind], size = {"count": 0, **asks}, size + len(kind)
        if kind in pending:
            pending[kind]["count"] += 1
    up, pending = str(resources.up.ranks), list(pending.values())
    return json.dumps({"up": up, "busy": str(busy), "used": used, "pending": pending})


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


def follow(configroot):
    """What is to be said of one broker, as long as it lives."""
    import flux

    sockets = [path for path in glob.glob(configroot + "/run/flux/local*") if stat.S_ISSOCK(os.stat(path).st_mode)]
    if not sockets:
        raise OSError("the broker of this pod has no socket yet")
    handle = flux.Flux("local://" + sockets[0])
    journal = handle.rpc("job-manager.events-journal", {"full": False}, flags=flux.constants.FLUX_RPC_STREAMING)
    said = None
    while True:
        began = time.monotonic()
        picture = look(handle)
        if picture != said:
            said = picture
            yield PICTURE, picture
        # A long queue is not looked at all the time.
        rest = max(SETTLE, min(EVERY, 2 * (time.monotonic() - began)))
        end = time.monotonic() + EVERY
        while time.monotonic() < end:
            if news(journal, SIGN):
                end = time.monotonic() + rest
                while time.monotonic() < end:
                    news(journal, max(0, end - time.monotonic()))
            yield ALIVE, ""


def tell(configroot):
    """What there is to say, for ever."""
    while True:
        try:
            yield from follow(configroot)
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
        for number, (kind, text) in enumerate(tell(self.configroot)):
            frame = struct.pack(">BI", kind, len(text.encode())) + text.encode()
            self.connection.sendall(frame + self.code(b"queue", struct.pack(">Q", number) + frame))


class Program:
    def __init__(self, port, configroot):
        self.configroot, self.callers = configroot, {}
        both = socket.has_dualstack_ipv6() if hasattr(socket, "has_dualstack_ipv6") else False
        self.server = socket.socket(socket.AF_INET6 if both else socket.AF_INET)
        self.server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if both:
            self.server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.server.bind(("", port))
        self.server.listen(CALLERS)
        self.server.setblocking(False)

    def run(self):
        # Those who listened, and ended, are not waited for.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
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

    def begin(self, caller):
        if os.fork() != 0:
            return
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # The port is the program's, which may be started again while somebody listens.
        self.server.close()
        for other in self.callers.values():
            if other is not caller:
                other.connection.close()
        try:
            caller.listen()
        except OSError:
            # It hung up: nothing to speak of.
            pass
        finally:
            os._exit(0)


if __name__ == "__main__":
    Program(int(sys.argv[1]), sys.argv[2]).run()
