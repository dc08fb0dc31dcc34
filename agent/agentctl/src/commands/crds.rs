//! `agentctl crds`: the definitions that this version brings, without a chart and without a checkout.

use serde::Serialize;
use tributary::api::crds;
use tributary::api::v1alpha1::guard;

use crate::cli::Crds;
use crate::error::{Failure, Result};
use crate::{document, output};

/// Runs `agentctl crds`.
pub(crate) fn run(wanted: &Crds) -> Result<()> {
    output::print(&text(&wanted.plurals)?)
}

/// The definitions as one YAML stream.
fn text(plurals: &[String]) -> Result<String> {
    let all = crds();
    let known: Vec<&str> = all.iter().map(|crd| crd.spec.names.plural.as_str()).collect();
    if let Some(unknown) = plurals.iter().find(|plural| !known.contains(&plural.as_str())) {
        return Err(Failure::new(format!("failed to find a definition of {unknown:?}"))
            .hint(format!("there are {}", known.join(", "))));
    }
    let mut text = String::new();
    for crd in &all {
        let plural = &crd.spec.names.plural;
        if !plurals.is_empty() && !plurals.contains(plural) {
            continue;
        }
        add(&mut text, crd)?;
        if plural == "miniclusters" {
            let (policy, binding) = guard();
            add(&mut text, &policy)?;
            add(&mut text, &binding)?;
        }
    }
    Ok(text)
}

fn add(text: &mut String, object: &impl Serialize) -> Result<()> {
    text.push_str("---\n");
    text.push_str(&document::yaml(object)?);
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    use serde_json::Value;

    use super::*;

    #[test]
    fn all_or_some_are_printed_as_they_are() {
        let all = text(&[]).unwrap();
        let read: Vec<Value> = serde_saphyr::from_multiple(&all).unwrap();
        let (guards, definitions): (Vec<_>, Vec<_>) =
            read.into_iter().partition(|one| one["kind"] != "CustomResourceDefinition");
        let definitions: Vec<CustomResourceDefinition> =
            definitions.into_iter().map(|one| serde_json::from_value(one).unwrap()).collect();
        assert_eq!(serde_json::to_value(&definitions).unwrap(), serde_json::to_value(crds()).unwrap());
        let kinds: Vec<_> = guards.iter().map(|one| one["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]);
        let one = text(&["bursts".to_owned()]).unwrap();
        assert_eq!(one.matches("\n  names:").count(), 1);
        assert!(one.contains("name: bursts.tributary.dev"), "{one}");
    }

    #[test]
    fn an_unknown_one_is_answered_with_those_there_are() {
        let failure = text(&["minicluster".to_owned()]).unwrap_err().to_string();
        assert!(failure.contains("hint: there are bursts, "), "{failure}");
    }
}
