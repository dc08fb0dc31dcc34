//! Who used what: by the records of both sides, on real API servers.

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::labels;
use tributary_tests::agentctl::document;
use tributary_tests::documents;
use tributary_tests::eventually::eventually;
use tributary_tests::federation::Federation;
use tributary_tests::scenario::bursting;

use crate::shared::{places, together};

/// The rows of a MiniCluster, by cluster and side.
async fn rows(federation: &Federation, namespace: &str) -> Vec<Value> {
    let asked = ["usage", "-n", namespace, "--since", "1h", "--by", "peer,user,job", "--peer-context", "west=west"];
    let document = document(&federation.kubeconfig(), &asked).await.unwrap();
    documents::fits(&document).unwrap();
    document["items"].as_array().unwrap().clone()
}

/// The danger: an object goes with its burst, and nobody knows any more what it used.
#[tokio::test(flavor = "multi_thread")]
async fn both_sides_have_on_record_what_a_burst_used_when_it_is_gone() {
    let federation = together().await;
    let [east, west, _] = places(&federation, "usage").await;
    east.create("sound", bursting(1, json!([{"size": 2, "peer": "west"}]))).await;
    let label = Patch::Merge(json!({"metadata": {"labels": {labels::USER: "ada"}}}));
    east.mini_clusters().patch("sound", &PatchParams::default(), &label).await.unwrap();
    east.burst("sound", "sound-burst-0", BurstPhase::Ready).await;
    let both = eventually("both have it on record", async || {
        let rows = rows(&federation, "usage").await;
        let now = rows.iter().filter(|row| row["brokers"] == 2).cloned().collect::<Vec<_>>();
        if now.len() == 2 { Ok(now) } else { Err(format!("{rows:#?}")) }
    })
    .await;
    let who = |row: &Value| ["cluster", "side", "peer", "job"].map(|key| row[key].as_str().unwrap().to_owned());
    assert_eq!(who(&both[0]), ["east", "root", "west", "sound"]);
    assert_eq!(who(&both[1]), ["west", "provider", "east", "sound"]);

    east.delete("sound").await;
    let closed = eventually("nothing is in use any more", async || {
        let rows = rows(&federation, "usage").await;
        let open = rows.iter().any(|row| row["brokers"] != 0);
        let gone = west.hosted().get_opt("sound-burst-0").await.map_err(|error| error.to_string())?.is_none();
        if gone && !open { Ok(rows) } else { Err(format!("{rows:#?}")) }
    })
    .await;
    let seconds = |side: &str, hours: &str| -> f64 {
        let of = closed.iter().filter(|row| row["side"] == side).map(|row| row[hours].as_f64().unwrap());
        of.sum::<f64>() * 3600.0
    };
    let (used, gave) = (seconds("root", "brokerHours"), seconds("provider", "brokerHours"));
    assert!(used > 0.0 && gave > 0.0, "{used} s and {gave} s: {closed:#?}");
    for (side, brokers) in [("root", used), ("provider", gave)] {
        assert!((seconds(side, "coreHours") - brokers).abs() <= 1.0, "a core each: {closed:#?}");
    }
}
