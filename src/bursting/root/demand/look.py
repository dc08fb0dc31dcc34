# What the queue of a Flux instance asks for, as one line of JSON. Run by `flux python -c` as the owner of the instance.
# The attributes and states are those of flux-core's job-list (RFC 43, RFC 21); "up" is what its scheduler may use: ranks that
# are online and not drained.
import json
import flux
import flux.job
from flux.idset import IDset
from flux.resource import resource_list

SCHED, RUN, CLEANUP = 8, 16, 32
MOST = 200

handle = flux.Flux()
up = resource_list(handle).get().up.ranks
waiting = flux.job.job_list(handle, max_entries=MOST, attrs=["urgency"], states=SCHED).get_jobs()
waiting = [job["id"] for job in waiting if job["urgency"] > 0]
busy = IDset()
for job in flux.job.job_list(handle, max_entries=0, attrs=["ranks"], states=RUN | CLEANUP).get_jobs():
    if job.get("ranks"):
        busy.add(job["ranks"])
pending = []
for found in flux.job.JobKVSLookup(handle, waiting, ["jobspec"]).data() if waiting else []:
    spec = found.get("jobspec") or {}
    system = spec.get("attributes", {}).get("system", {})
    burstable = system.get("burstable", False)
    if isinstance(burstable, str):
        burstable = burstable.lower() not in ("", "0", "false", "no")
    pending.append(
        {"burstable": bool(burstable), "resources": spec.get("resources"), "constraints": system.get("constraints")}
    )
print(json.dumps({"up": str(up), "busy": str(busy), "pending": pending}))
