use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::Instant;
use tributary_clock::SystemClock;

use super::*;

/// An API server that stores one Lease: merge patches, and replaces with the resource version as precondition.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<Stored>>);

#[derive(Default)]
struct Stored {
    lease: Option<Value>,
    version: u64,
    requests: u64,
    /// Answers nothing while set.
    cut_off: bool,
    /// Requests wait until then.
    slow_until: Option<Instant>,
}

impl Server {
    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await?;
                let slow_until = server.0.lock().unwrap().slow_until;
                if let Some(until) = slow_until {
                    tokio::time::sleep_until(until).await;
                }
                let answer = server.answer(&head.method, serde_json::from_slice(&body).unwrap_or_default());
                let Some((code, body)) = answer else { return std::future::pending().await };
                let body = Body::from(body.to_string().into_bytes());
                Ok::<_, tower::BoxError>(Response::builder().status(code).body(body).unwrap())
            }
        });
        Client::new(service, "n")
    }

    fn answer(&self, method: &Method, body: Value) -> Option<(u16, Value)> {
        let mut stored = self.0.lock().unwrap();
        stored.requests += 1;
        if stored.cut_off {
            return None;
        }
        let refused = |code: u16, reason: &str| {
            (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason}))
        };
        let new = match (method.as_str(), &stored.lease) {
            ("GET", Some(lease)) => return Some((200, lease.clone())),
            ("POST", Some(_)) => return Some(refused(409, "AlreadyExists")),
            ("POST", None) => body,
            (_, None) => return Some(refused(404, "NotFound")),
            ("PUT", Some(lease)) if body["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"] => {
                return Some(refused(409, "Conflict"));
            }
            ("PUT", Some(_)) => body,
            (_, Some(lease)) => {
                let mut lease = lease.clone();
                for (name, value) in body["spec"].as_object().unwrap() {
                    lease["spec"][name] = value.clone();
                }
                lease
            }
        };
        stored.version += 1;
        let mut new = new;
        new["metadata"]["resourceVersion"] = stored.version.to_string().into();
        stored.lease = Some(new.clone());
        Some((200, new))
    }

    fn holder(&self) -> String {
        self.0.lock().unwrap().lease.as_ref().unwrap()["spec"]["holderIdentity"].as_str().unwrap().to_owned()
    }
}

struct Agent {
    fence: Fence,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), Restored>>,
}

fn agent(server: &Server, holder: &str, clock: &SharedClock) -> Agent {
    let (state, fence) = Fence::closed(clock.clone());
    let clients = Clients {
        reader: server.client(),
        writer: server.client(),
        lease: server.client(),
        namespaces: std::sync::Arc::default(),
        host: "".into(),
    };
    let candidacy =
        Candidacy { namespace: "n".into(), lease: "tributary".into(), holder: holder.into(), watches: Vec::new() };
    let elector = Elector::new(&clients, candidacy, state, fence.clone(), clock.clone());
    let stop = CancellationToken::new();
    Agent { fence, task: tokio::spawn(elector.run(stop.clone())), stop }
}

async fn leads(agent: &Agent) -> u64 {
    let mut state = agent.fence.state();
    let state = state.wait_for(|state| matches!(state, LeaderState::Leading(_))).await.unwrap();
    let LeaderState::Leading(leadership) = &*state else { unreachable!() };
    leadership.epoch.transitions
}

#[tokio::test(start_paused = true)]
async fn one_leads_at_a_time_and_hands_over_when_it_stops() {
    let (server, clock) = (Server::default(), SystemClock::shared());
    let first = agent(&server, "a", &clock);
    let epoch = leads(&first).await;
    let second = agent(&server, "b", &clock);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(*second.fence.state().borrow(), LeaderState::Standby { holder: Some("a".into()) });
    assert!(first.fence.leading().is_some() && second.fence.leading().is_none());

    first.stop.cancel();
    first.task.await.unwrap().unwrap();
    assert_eq!(server.holder(), "");
    let stopped = clock.mono();
    assert!(leads(&second).await > epoch);
    assert!(clock.mono().saturating_since(stopped) <= TIMING.look_every, "no wait for an expiry");
}

#[tokio::test(start_paused = true)]
async fn a_killed_leader_is_followed_after_its_lease() {
    let (server, clock) = (Server::default(), SystemClock::shared());
    let first = agent(&server, "a", &clock);
    leads(&first).await;
    let second = agent(&server, "b", &clock);
    tokio::time::sleep(Duration::from_secs(10)).await;
    first.task.abort();
    let valid_until = first.fence.leading().unwrap().valid_until.mono;
    leads(&second).await;
    assert!(clock.mono() > valid_until, "never two at a time");
    assert_eq!(server.holder(), "b");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_stops_in_time_and_leads_again() {
    let (server, clock) = (Server::default(), SystemClock::shared());
    let agent = agent(&server, "a", &clock);
    let before = leads(&agent).await;
    server.0.lock().unwrap().cut_off = true;
    let valid_until = agent.fence.leading().unwrap().valid_until.mono;
    let mut state = agent.fence.state();
    state.wait_for(|state| matches!(state, LeaderState::Standby { .. })).await.unwrap();
    assert!(clock.mono().saturating_since(valid_until) < CALL_LIMIT);
    assert!(agent.fence.permit(Duration::from_millis(1)).await.is_err());
    server.0.lock().unwrap().cut_off = false;
    assert!(leads(&agent).await > before, "another epoch");
}

/// The danger: an API server that hangs for some seconds answers the renewal just after leadership is over. Whoever dates
/// losses by the leader before then finds that nobody has led since this one began, and ends every burst.
#[tokio::test(start_paused = true)]
async fn a_leader_that_renews_too_late_leads_anew() {
    let (server, clock) = (Server::default(), SystemClock::shared());
    let agent = agent(&server, "a", &clock);
    let before = leads(&agent).await;
    {
        // Every loss of contact is dated.
        let mut stored = server.0.lock().unwrap();
        let lease = stored.lease.as_mut().unwrap();
        lease["metadata"]["annotations"].take();
        lease["metadata"]["resourceVersion"] = "9999".into();
        stored.version = 9999;
    }
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let leadership = agent.fence.leading().unwrap();
    let left = leadership.valid_until.mono.saturating_since(clock.mono());
    server.0.lock().unwrap().slow_until = Some(Instant::now() + left + Duration::from_millis(100));
    tokio::time::sleep(left).await;
    assert!(agent.fence.leading().is_none(), "it is over, and nobody has said so");
    let (mut state, over) = (agent.fence.state(), clock.mono());
    state.mark_unchanged();
    state.changed().await.unwrap();
    assert!(leads(&agent).await > before, "another epoch");
    assert!(clock.mono().saturating_since(over) < Duration::from_secs(1), "no wait for an expiry");
    let newest = agent.fence.leading().unwrap();
    assert!(newest.before > leadership.before, "{newest:?}");
}

/// The danger: two requests each time, or a blind write over what another has written.
#[tokio::test(start_paused = true)]
async fn a_renewal_is_one_request_and_bears_with_what_others_write() {
    let (server, clock) = (Server::default(), SystemClock::shared());
    let agent = agent(&server, "a", &clock);
    let epoch = leads(&agent).await;
    let before = server.0.lock().unwrap().requests;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let requests = server.0.lock().unwrap().requests - before;
    assert!((14..=15).contains(&requests), "{requests}");
    {
        let mut stored = server.0.lock().unwrap();
        let lease = stored.lease.as_mut().unwrap();
        lease["metadata"]["annotations"] = json!({"noted": "by another"});
        lease["metadata"]["resourceVersion"] = "9999".into();
        stored.version = 9999;
    }
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(leads(&agent).await, epoch);
    assert_eq!(server.0.lock().unwrap().lease.as_ref().unwrap()["metadata"]["annotations"]["noted"], "by another");
}

/// The danger: a standby leads before the leader has learnt that its Lease is gone.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_deleted_or_emptied_makes_no_second_leader() {
    let emptied = json!({"metadata": {"name": "tributary", "resourceVersion": "9999"}, "spec": {"holderIdentity": ""}});
    for left in [None, Some(emptied)] {
        let (server, clock) = (Server::default(), SystemClock::shared());
        let first = agent(&server, "a", &clock);
        leads(&first).await;
        let second = agent(&server, "b", &clock);
        // Just after a renewal: the next is far.
        tokio::time::sleep(Duration::from_millis(20_100)).await;
        {
            let mut stored = server.0.lock().unwrap();
            stored.lease.clone_from(&left);
            stored.version = 9999;
        }
        for _ in 0..600 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert!(second.fence.leading().is_none(), "{left:?}");
        }
        leads(&first).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_lease_is_repaired() {
    let (server, clock) = (Server::default(), SystemClock::shared());
    server.0.lock().unwrap().lease = Some(json!({"metadata": {"name": "tributary", "resourceVersion": "0"}}));
    let agent = agent(&server, "a", &clock);
    leads(&agent).await;
    assert_eq!(server.holder(), "a");
}

#[test]
fn a_foreign_lease_is_held_until_it_expires() {
    let at = |secs| Timestamp::from_second(secs).unwrap();
    let lease = |spec: Value| -> Lease {
        serde_json::from_value(json!({"metadata": {"namespace": "operator-system", "name": "l"}, "spec": spec}))
            .unwrap()
    };
    let held =
        lease(json!({"holderIdentity": "op", "renewTime": "1970-01-01T00:00:10.000000Z", "leaseDurationSeconds": 15}));
    let found = Some(ForeignHolder { namespace: "operator-system".into(), holder: "op".into(), watches: None });
    assert_eq!(holder_at(&held, at(24), Duration::ZERO), found);
    assert_eq!(holder_at(&held, at(25), Duration::ZERO), None);
    assert!(holder_at(&held, at(54), Duration::from_secs(30)).is_some(), "clocks differ");
    assert_eq!(holder_at(&held, at(55), Duration::from_secs(30)), None);
    assert_eq!(holder_at(&lease(json!({"holderIdentity": ""})), at(0), Duration::ZERO), None);
    assert_eq!(holder_at(&lease(json!({"holderIdentity": "op"})), at(0), Duration::ZERO), None);
}

#[test]
fn holders_are_unique_per_process() {
    let mut rng = tributary_clock::SeededRng::new(1);
    assert_ne!(holder("pod", &mut rng), holder("pod", &mut rng));
    assert!(holder("pod", &mut rng).starts_with("pod_"));
}

/// The danger: an agent decides from what it remembers of a time that a backup knows nothing of.
#[tokio::test(start_paused = true)]
async fn an_api_server_that_was_restored_from_a_backup_ends_every_agent() {
    let (server, clock) = (Server::default(), SystemClock::shared());
    let first = agent(&server, "a", &clock);
    leads(&first).await;
    let second = agent(&server, "b", &clock);
    tokio::time::sleep(Duration::from_secs(20)).await;
    let backup = {
        let stored = server.0.lock().unwrap();
        (stored.lease.clone(), stored.version)
    };
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!first.task.is_finished() && !second.task.is_finished());
    {
        let mut stored = server.0.lock().unwrap();
        (stored.lease, stored.version) = backup;
    }
    tokio::time::sleep(TIMING.renew_every).await;
    assert!(first.fence.leading().is_none() && second.fence.leading().is_none());
    let said = first.task.await.unwrap().unwrap_err().to_string();
    assert!(said.starts_with("Lease tributary has the resource version "), "{said}");
    second.task.await.unwrap().unwrap_err();
}
