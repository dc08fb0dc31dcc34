//! The program beside the lead broker that tells of the queue, with something in the place of Flux's own bindings.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tributary::bursting::root::demand::hear::{Frame, Frames, PURPOSE, Wishes};
use tributary::tunnel::ends::handshake::Key;
use tributary_tests::eventually::never;

use super::pod::Pod;

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/render/scripts/tell-queue.py");

/// Flux as far as the program knows it: `jobs` is how many wait, and an event comes when it changes.
const FLUX: &str = r#"
import errno, json, os, sys, time, types

ROOT = os.environ["ROOT"]
def read():
    with open(ROOT + "/jobs") as jobs:
        return jobs.read()

class Future:
    def __init__(self, value=None):
        self.value, self.seen = value, read()
    def wait_for(self, seconds):
        if self.value == "no journal":
            return self
        end = time.monotonic() + seconds
        while read() == self.seen:
            if time.monotonic() > end:
                raise OSError(errno.ETIMEDOUT, "timed out")
            time.sleep(0.01)
        return self
    def get(self):
        if self.value == "no journal":
            raise OSError(errno.ENOSYS, "Function not implemented")
        return self.value
    def reset(self):
        self.seen = read()
    def get_jobs(self):
        return self.value

class Flux:
    def __init__(self, uri):
        assert uri == "local://" + ROOT + "/run/flux/local"
    def rpc(self, topic, payload=None, **more):
        if read() == "gone":
            raise OSError(errno.ECONNREFUSED, "the broker is gone")
        if topic == "resource.status":
            return Future({"drain": {ranks: {"reason": reason} for ranks, reason in drained().items()}})
        if topic == "resource.drain":
            return write_drained({**drained(), payload["targets"]: payload["reason"]})
        if topic == "resource.undrain":
            return write_drained({key: value for key, value in drained().items() if key != payload["targets"]})
        if topic == "job-manager.events-journal" and os.path.exists(ROOT + "/without-journal"):
            return Future("no journal")
        return Future({"start": True} if topic.endswith("queue-status") else None)

def drained():
    with open(ROOT + "/drained") as file:
        return json.load(file)
def write_drained(drained):
    with open(ROOT + "/drained", "w") as file:
        json.dump(drained, file)
    return Future()

class IDset:
    def __init__(self, ids):
        ids = ids.ids if isinstance(ids, IDset) else [int(one) for one in ids.split(",") if one]
        self.ids = sorted(ids)
    def __str__(self):
        return ",".join(map(str, self.ids))
    def __len__(self):
        return len(self.ids)
    def __and__(self, other):
        return IDset(",".join(str(one) for one in self.ids if one in other.ids))
    def __sub__(self, other):
        return IDset(",".join(str(one) for one in self.ids if one not in other.ids))

def job_list(handle, most, attributes, userid, states=0, since=0, queue=None):
    count = int(read()) if states == 8 else 0
    return Future([{"id": number, "urgency": 16, "queue": "west"} for number in range(count)])

class Lookup:
    def __init__(self, handle, ids, keys):
        self.ids = ids
    def data(self):
        slot = {"type": "slot", "count": 1, "with": [{"type": "core", "count": 1}]}
        spec = {"resources": [slot], "attributes": {"system": {"burstable": "1"}}}
        return [{"id": one, "jobspec": spec} for one in self.ids]

def module(name, **values):
    made = types.ModuleType(name)
    made.__dict__.update(values)
    sys.modules[name] = made
    return made

class Resources:
    def __init__(self, ranks):
        self.ranks = IDset(ranks)
    def to_dict(self):
        return {"execution": {"R_lite": []}}

class Both:
    def __init__(self):
        self.up, self.allocated = Resources(IDset("0,1") - IDset(",".join(drained()))), Resources("0,1")

module("flux.constants", FLUX_USERID_UNKNOWN=-1, FLUX_RPC_STREAMING=4)
job = module("flux.job", job_list=job_list, JobKVSLookup=Lookup)
module("flux.idset", IDset=IDset)
module("flux.resource", resource_list=lambda handle: Future(Both()))
"#;

struct Program(Child);

impl Program {
    fn start(program: &Path, root: &Path, port: u16) -> Self {
        let mut command = Command::new("python3");
        command.arg(program).arg(port.to_string()).arg(root).env("ROOT", root).env("PYTHONPATH", root.join("python"));
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

type Heard = Frames<ReadHalf<TcpStream>>;

async fn connect(port: u16, letter: &str) -> (Heard, Wishes<WriteHalf<TcpStream>>) {
    let key = Key::of_certificate(&format!("secret-key = \"{}\"", letter.repeat(40)), PURPOSE).unwrap();
    let tried = async {
        loop {
            if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)).await {
                return Frames::begin(stream, &key).await.unwrap();
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(20), tried).await.unwrap()
}

/// What it says next that is new.
async fn next(frames: &mut Heard) -> Frame {
    loop {
        match frames.next().await.unwrap() {
            Frame::Alive => {}
            frame => return frame,
        }
    }
}

/// The pod of a lead broker, as far as the program knows it.
struct Lead {
    folder: TempDir,
    port: u16,
}

impl Lead {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for directory in ["python/flux", "run/flux", "curve"] {
            std::fs::create_dir_all(root.join(directory)).unwrap();
        }
        std::fs::write(root.join("python/flux/__init__.py"), FLUX).unwrap();
        let curve = format!(
            "metadata\n    name = \"a=b\"\ncurve\n    public-key = \"x\"\n    secret-key = \"{}\"\n",
            "a".repeat(40)
        );
        std::fs::write(root.join("curve/curve.cert"), curve).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let lead = Self { folder, port };
        lead.says("0");
        std::fs::write(lead.folder.path().join("drained"), "{}").unwrap();
        lead
    }

    /// So many jobs wait; or the broker is gone.
    fn says(&self, jobs: &str) {
        let root = self.folder.path();
        std::fs::write(root.join("next"), jobs).unwrap();
        std::fs::rename(root.join("next"), root.join("jobs")).unwrap();
    }

    fn start(&self) -> Program {
        Program::start(Path::new(PROGRAM), self.folder.path(), self.port)
    }

    /// Starts one that is less patient with agents.
    fn start_impatient(&self) -> Program {
        let program = std::fs::read_to_string(PROGRAM).unwrap();
        let impatient = program.replace("LASTS, ALONE = 45, 120", "LASTS, ALONE = 2, 4");
        assert_ne!(program, impatient);
        let path = self.folder.path().join("impatient.py");
        std::fs::write(&path, impatient).unwrap();
        Program::start(&path, self.folder.path(), self.port)
    }

    fn drained(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("drained")).unwrap()
    }

    fn broker(&self) -> UnixListener {
        UnixListener::bind(self.folder.path().join("run/flux/local")).unwrap()
    }

    async fn agent(&self) -> Heard {
        connect(self.port, "a").await.0
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_knows_the_certificate_hears_of_the_queue_and_nobody_else_does() {
    let lead = Lead::new();
    let port = lead.port;
    let mut program = lead.start();

    let mut agent = lead.agent().await;
    let Frame::Trouble(why) = next(&mut agent).await else { panic!("there is no broker") };
    assert_eq!(why, "the broker of this pod has no socket yet");
    let _socket = lead.broker();
    let quiet = r#"{"up": "0,1", "busy": "0,1", "used": [], "pending": []}"#;
    assert_eq!(next(&mut agent).await, Frame::Picture(quiet.to_owned()));
    lead.says("3");
    let Frame::Picture(busy) = timeout(Duration::from_secs(2), next(&mut agent)).await.unwrap() else { panic!("jobs") };
    assert!(busy.contains(r#""pending": [{"count": 3, "burstable": true, "#), "{busy}");

    let stranger = connect(port, "b").await.0.next().await;
    assert!(stranger.unwrap_err().to_string().contains("another certificate"));
    // Strangers that say nothing, or only half of it, hold up nobody, however many they are.
    let mut silent = Vec::new();
    for number in 0..300_u32 {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        if number % 2 == 1 {
            stream.write_all(&[1; 33]).await.unwrap();
        }
        silent.push(stream);
    }
    let mut other = lead.agent().await;
    assert_eq!(next(&mut other).await, Frame::Picture(busy.clone()));
    // A third has the place of the first, which may wait for an answer for long.
    let mut third = lead.agent().await;
    assert_eq!(next(&mut third).await, Frame::Picture(busy.clone()));
    let left = async { while agent.next().await.is_ok() {} };
    timeout(Duration::from_secs(10), left).await.unwrap();

    // It is started again while somebody listens.
    program.0.kill().unwrap();
    program.0.wait().unwrap();
    let _next = lead.start();
    let mut another = lead.agent().await;
    assert_eq!(next(&mut another).await, Frame::Picture(busy));
    lead.says("gone");
    while !matches!(next(&mut other).await, Frame::Trouble(why) if why.contains("gone")) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_jobs_start_on_ranks_that_the_agent_closes_until_it_opens_them() {
    let lead = Lead::new();
    let (_program, _socket) = (lead.start(), lead.broker());
    let drained = |drained: &str| std::fs::write(lead.folder.path().join("drained"), drained).unwrap();
    let is_up = async |agent: &mut Heard, expected: &str| {
        let seen = async { while !matches!(next(agent).await, Frame::Picture(text) if up(&text) == expected) {} };
        timeout(Duration::from_secs(10), seen).await.unwrap_or_else(|_| panic!("{expected:?} is up"));
    };
    // An agent before this one has closed rank 0: that is not undone before the new one has said what it wants.
    drained(r#"{"0": "tributary: the burst is about to leave"}"#);
    let (mut agent, mut wishes) = connect(lead.port, "a").await;
    is_up(&mut agent, "1").await;
    wishes.closes("1,7").await.unwrap();
    is_up(&mut agent, "0").await;
    wishes.closes("").await.unwrap();
    is_up(&mut agent, "0,1").await;
    // What somebody else has drained stays so.
    drained(r#"{"1": "its fan is loud"}"#);
    lead.says("1");
    is_up(&mut agent, "0").await;
    for ranks in ["0,1", "0", ""] {
        wishes.closes(ranks).await.unwrap();
    }
    lead.says("2");
    is_up(&mut agent, "0").await;
    let (mut stranger, mut says) = connect(lead.port, "b").await;
    let _ = says.closes("0").await;
    assert!(stranger.next().await.is_err());
}

/// The danger: ranks stay closed for ever, and the jobs that ask for them wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_says_no_more_what_it_wishes_closes_nothing() {
    let lead = Lead::new();
    let (_program, _socket) = (lead.start_impatient(), lead.broker());
    let until = async |drained: &str| {
        let seen = async {
            while lead.drained() != drained {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(Duration::from_secs(20), seen).await.unwrap_or_else(|_| panic!("{drained}: {}", lead.drained()));
    };
    let closed = r#"{"0": "tributary: the burst is about to leave"}"#;
    // It leads no more, and nobody knows.
    let (_old, mut wishes) = connect(lead.port, "a").await;
    wishes.closes("0").await.unwrap();
    until(closed).await;
    let (_new, mut others) = connect(lead.port, "a").await;
    let opened = async {
        while lead.drained() != "{}" {
            others.closes("").await.unwrap();
            sleep(Duration::from_millis(500)).await;
        }
    };
    timeout(Duration::from_secs(20), opened).await.unwrap();
    let closed_again = async || Some(lead.drained()).filter(|drained| drained != "{}");
    never("the old wish counts again", Duration::from_secs(1), closed_again).await;
    // Nobody listens any more; then an agent does that knows nothing of wishes.
    others.closes("0").await.unwrap();
    until(closed).await;
    drop((_old, wishes, _new, others));
    until("{}").await;
    std::fs::write(lead.folder.path().join("drained"), closed).unwrap();
    let _silent = lead.agent().await;
    until("{}").await;
}

fn up(picture: &str) -> String {
    let picture: serde_json::Value = serde_json::from_str(picture).unwrap();
    picture["up"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_flux_has_no_journal_it_asks_again_and_again() {
    let lead = Lead::new();
    let (_program, _socket) = (lead.start(), lead.broker());
    std::fs::write(lead.folder.path().join("without-journal"), "").unwrap();
    let mut agent = lead.agent().await;
    for jobs in ["0", "3", "1"] {
        lead.says(jobs);
        let found = async { while !matches!(next(&mut agent).await, Frame::Picture(text) if count(&text) == jobs) {} };
        timeout(Duration::from_secs(10), found).await.unwrap();
    }
    // Nothing is new, and it says so.
    let quiet = async { while agent.next().await.unwrap() != Frame::Alive {} };
    timeout(Duration::from_secs(10), quiet).await.unwrap();
}

fn count(picture: &str) -> String {
    let picture: serde_json::Value = serde_json::from_str(picture).unwrap();
    picture["pending"][0]["count"].as_u64().unwrap_or(0).to_string()
}

const ROOT: &str =
    "  size: 2\n  containers: [{cores: 1, command: hostname}]\n  flux: {bursting: {clusters: [{size: 1, cores: 1}]}}\n";

/// A broker that goes on. The program ends at once; then Python says whether it knows Flux.
const BROKER: &str = r#"
case "$*" in
start*) touch $ROOT/up; while [[ ! -e $ROOT/over ]]; do sleep 0.1; done ;;
"python -c"*) exit "$(cat $ROOT/python)" ;;
python*) echo told >>$ROOT/told ;;
esac
exit 0
"#;

fn pod(index: u32, python: &str) -> Pod {
    let pod = Pod::new(ROOT, index);
    pod.behave(BROKER);
    pod.write("python", python);
    pod.init();
    pod
}

#[test]
fn the_lead_keeps_the_program_running_and_goes_on_where_no_python_knows_flux() {
    let lead = pod(0, "0");
    let mut running = lead.start("wait-0.sh");
    lead.until("told", "told\ntold\n");
    lead.write("over", "");
    running.terminate();
    assert_eq!(lead.calls_of_queue()[0], "flux python /flux_operator/tell-queue.py 8052 /mnt/flux/config");

    let without = pod(0, "1");
    let mut running = without.start("wait-0.sh");
    without.until("output", "No Python here knows Flux (import flux)");
    without.until("up", "");
    without.write("over", "");
    running.terminate();
    assert_eq!(without.calls_of_queue().len(), 2);

    let follower = pod(1, "0");
    let mut running = follower.start("wait-0.sh");
    follower.until("up", "");
    follower.write("over", "");
    running.terminate();
    assert_eq!(follower.calls_of_queue(), [""; 0]);
}
