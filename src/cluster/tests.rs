//! What agents are made of, over an API server in memory.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tributary_api_server::{ApiServer, Fault};
use tributary_clock::{Now, SharedClock, SystemClock};

use crate::apply::{Applied, Applier};
use crate::client::{Clients, WRITE_LIMIT};
use crate::error::Cause;
use crate::fence::{Fence, FenceError, LeaderState};
use crate::leadership::{Candidacy, Elector};
use crate::requests::RequestMetrics;

fn map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

fn leading(clock: &SharedClock, seconds: u64) -> (tokio::sync::watch::Sender<LeaderState>, Fence) {
    let valid_until = Now::of(&**clock).plus(Duration::from_secs(seconds));
    let (sender, receiver) = tokio::sync::watch::channel(LeaderState::leads(1, valid_until));
    (sender, Fence::new(receiver, clock.clone()))
}

#[tokio::test(start_paused = true)]
async fn the_fence_and_the_limits_of_an_agent_hold_over_it() {
    let clock = SystemClock::shared();
    let server = ApiServer::new("east", clock.clone());
    let (_sender, fence) = leading(&clock, 10);
    let clients = Clients::over(&server, fence, &RequestMetrics::default(), &clock);
    let write = async |name: &str| {
        let api: Api<ConfigMap> = Api::namespaced(clients.writer.clone(), "n");
        let params = PatchParams::apply("m");
        api.patch(name, &params, &Patch::Apply(map(name, json!({})))).await.map_err(Cause::from)
    };
    write("a").await.unwrap();
    server.fail_next("patch", "configmaps", Fault::DelayAnswer(WRITE_LIMIT * 2));
    assert!(matches!(write("b").await, Err(Cause::Fenced(FenceError::TimedOut { .. }))));
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(matches!(write("c").await, Err(Cause::Fenced(FenceError::NotLeading))));
    assert_eq!(server.writes().iter().map(|write| write.request.name.as_str()).collect::<String>(), "ab");
    assert!(server.writes().iter().all(|write| write.request.manager == "m" && write.code == 201));
    let api: Api<ConfigMap> = Api::namespaced(clients.reader.clone(), "n");
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), 2);
    assert!(api.delete("a", &DeleteParams::default()).await.is_err(), "it only reads");
}

#[tokio::test(start_paused = true)]
async fn agents_elect_a_leader_over_it_who_writes_through_the_gate() {
    let clock = SystemClock::shared();
    let server = ApiServer::new("east", clock.clone());
    let candidate = |holder: &str| {
        let (state, fence) = Fence::closed(clock.clone());
        let clients = Clients::over(&server, fence.clone(), &RequestMetrics::default(), &clock);
        let (namespace, lease) = ("n".to_owned(), "agent".to_owned());
        let candidacy = Candidacy { namespace, lease, holder: holder.to_owned(), watches: Vec::new() };
        let stop = CancellationToken::new();
        let elector = Elector::new(&clients, candidacy, state, fence.clone(), clock.clone());
        tokio::spawn(elector.run(stop.clone()));
        (Applier::new(clients.writer, "m"), fence, stop)
    };
    let agents = [candidate("a"), candidate("b")];
    let leader = async || {
        tokio::time::sleep(Duration::from_secs(30)).await;
        let leading: Vec<_> = agents.iter().filter(|(_, fence, _)| fence.leading().is_some()).collect();
        assert_eq!(leading.len(), 1);
        leading[0]
    };
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "u", "controller": true});
    let mut wanted = map("a", json!({"k": "v"}));
    wanted["metadata"]["namespace"] = "n".into();
    wanted["metadata"]["ownerReferences"] = json!([owner]);
    let wanted: ConfigMap = serde_json::from_value(wanted).unwrap();

    let (applier, first, stop) = leader().await;
    let made = applier.own(&wanted, None).await.unwrap().object().unwrap();
    assert_eq!(applier.own(&wanted, Some(&made)).await.unwrap(), Applied::Unchanged);
    let theirs = server.patch::<ConfigMap>("n", "a", json!({"data": {"k": "theirs"}})).unwrap();
    assert!(matches!(applier.own(&wanted, Some(&theirs)).await.unwrap(), Applied::Changed(_)));
    stop.cancel();
    let (applier, second, _) = leader().await;
    assert_ne!(second.leading().map(|one| one.epoch), first.leading().map(|one| one.epoch));
    assert_eq!(applier.own(&wanted, None).await.unwrap(), Applied::Unchanged, "it is found, and ours");
}
