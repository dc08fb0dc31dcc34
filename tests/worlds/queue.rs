//! What the programs beside lead brokers tell the agents of their clusters.

use std::io;
use std::sync::{Arc, Mutex};

use futures::FutureExt as _;
use futures::future::{self, BoxFuture};
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};
use tokio::sync::watch;
use tributary::bursting::root::demand::hear::{Connect, Lead, Stream};
use tributary_api_server::ApiServer;
use tributary_tests::queue::tell;

/// How whoever is asked instead of the program answers; none: it is the program.
pub type Lie = fn(&Lead) -> Option<Answer>;

/// What the lead brokers of a cluster say of their queues. Cloning shares it.
#[derive(Clone)]
pub struct Queue {
    pictures: watch::Sender<String>,
    closed: Arc<Mutex<String>>,
    lie: Arc<Mutex<Lie>>,
}

/// How a connection goes wrong.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// Nobody takes it.
    Nobody,
    /// Nobody says whether it is taken.
    Nowhere,
    /// It is taken, and nothing is said.
    Silence,
    /// It is taken by somebody with another certificate.
    Stranger,
    /// What is said is no picture of a queue.
    Nonsense,
}

impl Default for Queue {
    fn default() -> Self {
        let queue =
            Self { pictures: watch::Sender::default(), closed: Arc::default(), lie: Arc::new(Mutex::new(|_| None)) };
        queue.says("", 0);
        queue
    }
}

impl Queue {
    /// On which ranks jobs run, and how many more wait that may run on brokers which are not there yet.
    pub fn says(&self, busy: &str, pending: u32) {
        let slot = json!({"type": "slot", "count": 1, "with": [{"type": "core", "count": 1}]});
        let job = json!({"count": pending, "burstable": true, "resources": [slot], "constraints": Value::Null});
        let answer = json!({"up": "0-1", "busy": busy, "used": [], "pending": [job]});
        self.pictures.send_replace(answer.to_string());
    }

    /// Which ranks are there, and on which jobs run; none wait.
    pub fn shows(&self, up: &str, busy: &str) {
        let answer = json!({"up": up, "busy": busy, "used": [], "pending": []});
        self.pictures.send_replace(answer.to_string());
    }

    /// The ranks on which an agent lets no more jobs start, as it said last.
    pub fn closed(&self) -> String {
        self.closed.lock().unwrap().clone()
    }

    /// From now on, others answer in the place of some programs.
    pub fn lies(&self, lie: Lie) {
        *self.lie.lock().unwrap() = lie;
    }
}

/// How the agents of a cluster reach the programs.
pub struct Ways {
    pub queue: Queue,
    pub server: ApiServer,
}

impl Connect for Ways {
    fn connect<'a>(&'a self, lead: &'a Lead) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        let secret = self.server.get::<Secret>(&lead.namespace, &lead.secret).and_then(|secret| secret.data);
        let certificate = secret.and_then(|mut data| data.remove("curve.cert")).map(|bytes| bytes.0);
        let mut certificate = String::from_utf8(certificate.unwrap_or_default()).unwrap();
        let mut pictures = self.queue.pictures.subscribe();
        let (near, far) = tokio::io::duplex(1 << 16);
        let lie = self.queue.lie.lock().unwrap()(lead);
        match lie {
            None => {}
            Some(Answer::Nobody) => return future::err(io::ErrorKind::ConnectionRefused.into()).boxed(),
            Some(Answer::Nowhere) => return future::pending().boxed(),
            Some(Answer::Silence) => {
                tokio::spawn(async move {
                    let _far = far;
                    future::pending::<()>().await;
                });
                return future::ok(Box::new(near) as Box<dyn Stream>).boxed();
            }
            Some(Answer::Stranger) => certificate = format!("secret-key = \"{}\"", "x".repeat(40)),
            Some(Answer::Nonsense) => pictures = watch::Sender::new("secret-key".to_owned()).subscribe(),
        }
        let closed = Arc::clone(&self.queue.closed);
        tokio::spawn(async move {
            tell(far, &certificate, pictures, |ranks| ranks.clone_into(&mut closed.lock().unwrap())).await
        });
        future::ok(Box::new(near) as Box<dyn Stream>).boxed()
    }
}

#[cfg(test)]
mod tests {
    use tributary::api::flux_job::FluxJob;
    use tributary::api::flux_setup::FluxSetup;
    use tributary_api_server::Fault;

    use super::*;
    use crate::cluster::{USERS, put};
    use crate::dangers::{SHORT, in_world, secs};

    /// The danger: the status of one FluxJob can never be written, and all that is due in its namespace waits as long as that is
    /// not tried again.
    #[test]
    fn a_job_that_cannot_be_written_makes_no_other_late() {
        in_world(1, SHORT, async |world| {
            let server = world.clusters[0].server.clone();
            server.on_request(|info| {
                let stuck = info.verb == "patch" && info.path.ends_with("/fluxjobs/stuck/status");
                stuck.then_some(Fault::Answer(403))
            });
            let job = |name: &str, command: &str| {
                let spec = json!({"image": "i", "command": command, "ttlAfterFinished": "5m"});
                json!({"metadata": {"name": name, "namespace": USERS}, "spec": spec})
            };
            put::<FluxSetup>(&server, json!({"metadata": {"name": "default", "namespace": USERS}, "spec": {}}));
            put::<FluxJob>(&server, job("refused", "echo 'x"));
            let phase = || server.stored::<FluxJob>(USERS, "refused").map(|job| job["status"]["phase"].clone());
            world.until("one is refused", secs(10), |_| phase() == Some("Finished".into())).await?;
            put::<FluxJob>(&server, job("stuck", "hostname"));
            world.run(secs(280)).await?;
            assert!(phase().is_some());
            world.until("it goes when it is due", secs(25), |_| phase().is_none()).await
        });
    }
}
