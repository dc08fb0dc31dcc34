//! Bursts on demand, whose agent asks the lead broker through the API server's own way into a pod, with the right that the
//! chart gives it in named namespaces. In the place of the containers, commands run on this machine, where a program called
//! `flux` answers for the queue.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tributary::api::burst::BurstStatus;
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::labels;
use tributary_tests::chart;
use tributary_tests::eventually::eventually;
use tributary_tests::scenario::{Place, bursting};

use crate::asking;
use crate::shared::{places, together};

/// The namespace in whose pods commands are run.
pub(crate) const NAMESPACE: &str = "on-demand";

/// What a pod's own script leaves behind for others, and the `flux` that they find.
struct View {
    directory: PathBuf,
    _socket: UnixListener,
}

impl View {
    fn new(directory: &Path) -> Self {
        let run = directory.join("config/run/flux");
        fs::create_dir_all(&run).unwrap();
        let socket = UnixListener::bind(run.join("local")).unwrap();
        let shown = directory.display();
        fs::write(directory.join("flux-view.sh"), format!("export PATH={shown}:$PATH\n")).unwrap();
        let flux = directory.join("flux");
        let script = format!(
            "#!/bin/bash\n[[ $1 == python && $2 == -c && $3 == *job_list* && -S ${{FLUX_URI#local://}} ]] || exit 64\n\
             echo 'something else that Python says'\ncat {shown}/answer\n"
        );
        fs::write(&flux, script).unwrap();
        fs::set_permissions(&flux, fs::Permissions::from_mode(0o755)).unwrap();
        Self { directory: directory.to_owned(), _socket: socket }
    }

    /// What the queue says from now on; whoever reads meanwhile reads one or the other.
    fn says(&self, busy: &str, pending: Value) {
        let answer = json!({"up": "0-2", "busy": busy, "used": [], "pending": pending});
        fs::write(self.directory.join("next"), format!("{answer}\n")).unwrap();
        fs::rename(self.directory.join("next"), self.directory.join("answer")).unwrap();
    }
}

fn spec(directory: &Path, clusters: Value) -> Value {
    let mut spec = bursting(1, clusters);
    spec["flux"]["container"] = json!({"mountPath": directory});
    spec
}

/// Waits until the condition `Demand` of a Burst has this status and reason; its sentence, and the whole status.
async fn demand(place: &Place, root: &str, (status, reason): (&str, &str)) -> (String, BurstStatus) {
    eventually(format!("{root}: Demand={status} ({reason})"), async || {
        let burst = place.burst_now(root, &format!("{root}-burst-0")).await?;
        let seen = burst.status.unwrap_or_default();
        match seen.conditions.iter().find(|one| one.type_ == labels::condition::DEMAND) {
            Some(one) if one.status == status && one.reason == reason => Ok((one.message.clone(), seen.clone())),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_wake_a_burst_through_the_leads_pod_and_idleness_ends_it() {
    let federation = together().await;
    let [east, west, _] = places(&federation, NAMESPACE).await;
    chart::allow_on_demand(&east.client, NAMESPACE).await.unwrap();
    let view = View::new(&federation.directory().join("queue"));
    view.says("", json!([]));
    let clusters = json!([{"size": 2, "peer": "west", "mode": "OnDemand", "onDemand": {"maxIdle": "30s"},
        "budget": {"brokerHours": 100}}]);
    east.create("heron", spec(&view.directory, clusters)).await;
    let (said, asleep) = demand(&east, "heron", ("False", "Asleep")).await;
    assert_eq!((said.as_str(), asleep.phase), ("it is asleep: no pending job asks for it", BurstPhase::Asleep));
    east.running("heron").await;
    assert_eq!(asking::why_not(&federation, NAMESPACE, "heron", "heron-burst-0").await, "Asleep");

    let slot = json!([{"type": "slot", "count": 1, "with": [{"type": "core", "count": 1}]}]);
    let job = json!({"count": 3, "burstable": true, "resources": slot, "constraints": null});
    view.says("0", json!([job]));
    let awake = east.burst("heron", "heron-burst-0", BurstPhase::Ready).await.status.unwrap();
    assert_eq!(awake.demand.map(|demand| (demand.awake, demand.starts, demand.pending)), Some((true, 1, 3)));
    assert_eq!(west.status("heron-burst-0").await.unwrap().ready, Some(2));

    view.says("1-2", json!([]));
    demand(&east, "heron", ("True", "InUse")).await;
    view.says("0", json!([]));
    let (said, _) = demand(&east, "heron", ("True", "Idle")).await;
    assert!(said.contains("it is drained at"), "{said}");
    // Half a minute, and until the look after it; then its brokers drain.
    demand(&east, "heron", ("False", "Asleep")).await;
    let asleep = east.burst("heron", "heron-burst-0", BurstPhase::Asleep).await.status.unwrap();
    // Asleep, it holds nothing there.
    west.empty("heron-burst-0").await;
    assert!(asleep.spent.broker_seconds > 0 && asleep.spent.brokers == 0, "{:?}", asleep.spent);
    assert_eq!(asleep.demand.map(|demand| demand.starts), Some(1));
    east.delete("heron").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_cannot_be_read_leaves_a_burst_as_it_is_and_says_why() {
    let federation = together().await;
    let [east, _, _] = places(&federation, NAMESPACE).await;
    let [elsewhere, _, _] = places(&federation, "not-on-demand").await;
    chart::allow_on_demand(&east.client, NAMESPACE).await.unwrap();
    let clusters = || json!([{"size": 1, "peer": "west", "mode": "OnDemand"}]);

    elsewhere.create("swan", bursting(1, clusters())).await;
    let (said, swan) = demand(&elsewhere, "swan", ("Unknown", "Forbidden")).await;
    assert!(said.contains("add it to bursting.onDemandNamespaces of the chart"), "{said}");
    assert_eq!(swan.phase, BurstPhase::Asleep);
    assert_eq!(asking::why_not(&federation, "not-on-demand", "swan", "swan-burst-0").await, "Forbidden");
    elsewhere.running("swan").await;

    // A pod whose broker has not come so far: the words of the script that looked arrive.
    east.create("coot", spec(&federation.directory().join("nowhere"), clusters())).await;
    let (said, coot) = demand(&east, "coot", ("Unknown", "Unreadable")).await;
    assert!(said.contains("the broker of this pod has no socket yet"), "{said}");
    assert_eq!((coot.phase, coot.demand.unwrap().awake), (BurstPhase::Asleep, false));
    elsewhere.delete("swan").await;
    east.delete("coot").await;
}
