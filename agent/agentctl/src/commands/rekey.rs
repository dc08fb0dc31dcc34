//! `agentctl rekey`: a new instance of a MiniCluster, with a new certificate. What it is beside a restart.

use kube::ResourceExt;
use tributary::api::minicluster::MiniCluster;

use crate::error::{Failure, Result};

/// Whether a new instance would get a new certificate.
pub(super) fn possible(object: &MiniCluster) -> Result<()> {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let failure = Failure::new(format!("failed to rekey MiniCluster {namespace}/{name}"));
    let anew = format!("start the instance anew: `agentctl restart minicluster/{name} --namespace {namespace}`");
    if let Some(secret) = &object.spec.flux.curve_cert_secret {
        let failure = failure.because(format!("its certificate is in Secret {secret}, which Tributary does not write"));
        return Err(failure.hint(format!("put a new one there (flux keygen), then {anew}")));
    }
    if object.spec.flux.curve_cert.is_some() {
        let failure = failure.because("its certificate is written in spec.flux.curveCert");
        return Err(failure.hint(format!("remove the field, or write another certificate, then {anew}")));
    }
    Ok(())
}

/// What a new instance costs.
pub(super) fn lost(object: &MiniCluster) -> String {
    let status = object.status.clone().unwrap_or_default();
    let name = object.name_any();
    let ready = status.ready.unwrap_or(0);
    let bursts: Vec<String> =
        status.bursts.iter().map(|burst| format!("{} ({} brokers)", burst.name, burst.ready)).collect();
    let bursts = match bursts.as_slice() {
        [] => String::new(),
        some => format!("\n  bursts that are released and placed again: {}", some.join(", ")),
    };
    let archive = match &object.spec.archive.path {
        Some(path) => format!("\n  kept: what Flux archives at its end ({path})"),
        None => "\n  all that Flux keeps of its jobs (no archive.path is written)".to_owned(),
    };
    format!(
        "a new instance of MiniCluster {name} loses\n  every job that runs or waits in it, and its command, which is run \
         again\n  its {ready} brokers here, whose pods are made anew{bursts}{archive}"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(spec: serde_json::Value) -> MiniCluster {
        let mut whole = json!({"size": 2, "containers": [{"image": "app"}]});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let bursts = json!([{"name": "lake-burst-0", "ready": 3}]);
        serde_json::from_value(
            json!({"metadata": {"name": "lake", "namespace": "flux"}, "spec": whole, "status": {"ready": 2, "bursts": bursts}}),
        )
        .unwrap()
    }

    #[test]
    fn what_is_lost_is_told_before_it_is() {
        let archived = object(json!({"archive": {"path": "/state/archive.tar"}}));
        insta::assert_snapshot!([lost(&object(json!({}))), lost(&archived)].join("\n\n"));
    }

    #[test]
    fn only_certificates_of_our_own_are_made_anew() {
        assert!(possible(&object(json!({}))).is_ok());
        let refused =
            [object(json!({"flux": {"curveCertSecret": "mine"}})), object(json!({"flux": {"curveCert": "text"}}))];
        let texts: Vec<_> = refused.iter().map(|object| possible(object).unwrap_err().to_string()).collect();
        texts.iter().for_each(|text| crate::paste::check::pastes(text));
        insta::assert_snapshot!(texts.join("\n\n---\n\n"));
    }
}
