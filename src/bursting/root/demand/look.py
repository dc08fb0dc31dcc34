# What the queue of a Flux instance asks for, as one line of JSON. Run by `flux python -c` as the owner of the instance.
# The attributes and states are those of flux-core's job-list (RFC 43, RFC 21); "up" is what its scheduler may use: ranks that
# are online and not drained. Jobs of all users count, and jobs that ask for the same are told once, with their number.
import json
import time
import flux
import flux.job
from flux.idset import IDset
from flux.resource import resource_list

SCHED, INACTIVE = 8, 64
ANYBODY = flux.constants.FLUX_USERID_UNKNOWN
MOST, KINDS, RECENT = 2000, 500, 20

handle = flux.Flux()
resources = resource_list(handle).get()
busy, used = IDset(resources.allocated.ranks), []
for entry in resources.allocated.to_dict()["execution"]["R_lite"]:
    used.append([entry["rank"], IDset(entry["children"]["core"]).count()])
# A job that came and went between two looks was there all the same.
since = time.time() - RECENT
for job in flux.job.job_list(handle, MOST, ["ranks"], ANYBODY, states=INACTIVE, since=since).get_jobs():
    if job.get("ranks"):
        busy.add(job["ranks"])
waiting = flux.job.job_list(handle, MOST, ["urgency", "queue"], ANYBODY, states=SCHED).get_jobs()
# A queue that is stopped starts nothing, wherever. The one that has no name is asked for without one.
started = {}
for name in {job.get("queue") for job in waiting}:
    try:
        started[name] = handle.rpc("job-manager.queue-status", {"name": name} if name else {}).get()["start"]
    except (OSError, KeyError):
        started[name] = True
waiting = [job["id"] for job in waiting if started[job.get("queue")] and job["urgency"] > 0]
pending = {}
for found in flux.job.JobKVSLookup(handle, waiting, ["jobspec"]).data() if waiting else []:
    spec = found.get("jobspec") or {}
    system = spec.get("attributes", {}).get("system", {})
    burstable = system.get("burstable", False)
    if isinstance(burstable, str):
        burstable = burstable.lower() not in ("", "0", "false", "no")
    asks = {"burstable": bool(burstable), "resources": spec.get("resources"), "constraints": system.get("constraints")}
    kind = json.dumps(asks, sort_keys=True)
    if kind in pending or len(pending) < KINDS:
        pending.setdefault(kind, {"count": 0, **asks})["count"] += 1
print(json.dumps({"up": str(resources.up.ranks), "busy": str(busy), "used": used, "pending": list(pending.values())}))
