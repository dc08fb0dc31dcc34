//! A peer that is removed keeps the certificate it was given: that is said, until the instance runs with another one.

use kube::api::{Patch, PatchParams};
use serde_json::json;
use tributary::api::labels::condition::CERTIFICATE_EXPOSED;
use tributary::api::labels::{RESTART, manager};
use tributary_tests::eventually::eventually;
use tributary_tests::scenario::Place;

/// The certificate of `root` is known to be with `peer`, which is no peer any more.
pub(crate) async fn exposed(place: &Place, root: &str, peer: &str) {
    let said = place.condition(root, CERTIFICATE_EXPOSED, "True", "PeerRemoved").await;
    assert!(said.contains(peer) && said.contains("agentctl rekey"), "{said}");
    let recipients = place.status(root).await.unwrap().credential_recipients;
    assert!(recipients.iter().any(|one| one.peer == peer && one.removed.is_some()), "{recipients:?}");
}

/// Asks for another certificate, as `agentctl rekey` does, and waits until the instance runs with it: nobody who has the
/// one before can join.
pub(crate) async fn rekeyed(place: &Place, root: &str, peer: &str) {
    let before = place.status(root).await.unwrap().credential_digest;
    assert!(before.is_some());
    let annotation = json!({"metadata": {"annotations": {RESTART: "rekey"}}});
    let params = PatchParams { field_manager: Some(manager::AGENTCTL.into()), ..PatchParams::default() };
    place.mini_clusters().patch(root, &params, &Patch::Merge(annotation)).await.unwrap();
    eventually("it runs with another certificate, which only peers have", async || {
        let status = place.status(root).await?;
        let another = status.credential_digest.is_some() && status.credential_digest != before;
        let of_peers = status.credential_recipients.iter().all(|one| one.removed.is_none());
        let given = status.credential_recipients.iter().any(|one| one.peer == peer);
        if another && of_peers && given { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    place.condition(root, CERTIFICATE_EXPOSED, "False", "NewCertificate").await;
}
