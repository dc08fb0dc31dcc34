//! What keeps v1alpha1 from losing fields where nobody converts it.
//!
//! Without conversion an API server takes v1alpha1 for v1alpha2, and drops what it does not know. Until an agent has said in
//! the definition who converts, and whenever nobody does, v1alpha1 can be read only. v1alpha2 is not touched by this.
//!
//! Source: <https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/>

use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, NamedRuleWithOperations, ParamKind, ParamRef, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec, Validation,
};
use kube::api::ObjectMeta;

/// Name of the policy and of its binding.
const NAME: &str = "miniclusters-v1alpha1.flux-framework.org";

/// The policy, and what puts it into force.
pub fn guard() -> (ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding) {
    let text = |text: &str| Some(text.to_owned());
    let list = |words: &[&str]| Some(words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
    let metadata = ObjectMeta { name: text(NAME), ..ObjectMeta::default() };
    let writes = NamedRuleWithOperations {
        api_groups: list(&["flux-framework.org"]),
        api_versions: list(&["v1alpha1"]),
        operations: list(&["CREATE", "UPDATE"]),
        resources: list(&["miniclusters", "miniclusters/*"]),
        ..NamedRuleWithOperations::default()
    };
    let converts = Validation {
        expression: "has(params.spec.conversion) && params.spec.conversion.strategy == 'Webhook'".to_owned(),
        message: text(
            "nobody converts v1alpha1 here, and parts of the MiniCluster would be lost; use v1alpha2, or enable the \
             webhook of the agent",
        ),
        ..Validation::default()
    };
    let policy = ValidatingAdmissionPolicySpec {
        failure_policy: text("Fail"),
        param_kind: Some(ParamKind {
            api_version: text("apiextensions.k8s.io/v1"),
            kind: text("CustomResourceDefinition"),
        }),
        match_constraints: Some(MatchResources {
            match_policy: text("Exact"),
            resource_rules: Some(vec![writes]),
            ..MatchResources::default()
        }),
        validations: Some(vec![converts]),
        ..ValidatingAdmissionPolicySpec::default()
    };
    let binding = ValidatingAdmissionPolicyBindingSpec {
        policy_name: text(NAME),
        validation_actions: list(&["Deny"]),
        param_ref: Some(ParamRef {
            name: text("miniclusters.flux-framework.org"),
            parameter_not_found_action: text("Deny"),
            ..ParamRef::default()
        }),
        ..ValidatingAdmissionPolicyBindingSpec::default()
    };
    (
        ValidatingAdmissionPolicy {
            metadata: metadata.clone(),
            spec: Some(policy),
            ..ValidatingAdmissionPolicy::default()
        },
        ValidatingAdmissionPolicyBinding { metadata, spec: Some(binding) },
    )
}
