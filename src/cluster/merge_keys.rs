//! How server-side apply identifies the elements of a list.
//!
//! Source: the `x-kubernetes-list-type` and `x-kubernetes-list-map-keys` of the built-in kinds' OpenAPI document
//! (<https://kubernetes.io/docs/reference/using-api/server-side-apply/#merge-strategy>). A list that is not named here
//! is atomic: who applies it owns all of it.

/// How elements of a list are identified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ListType {
    /// All of it belongs to who applied it.
    Atomic,
    /// By value.
    Set,
    /// By the value of these fields.
    Map(&'static [&'static str]),
}

/// Lists of the built-in kinds: the field, the field around it (`""`: any), and how its elements are identified.
const BUILT_IN: &[(&str, &str, ListType)] = &[
    ("containers", "", ListType::Map(&["name"])),
    ("env", "", ListType::Map(&["name"])),
    ("ephemeralContainers", "", ListType::Map(&["name"])),
    ("hostAliases", "", ListType::Map(&["ip"])),
    ("imagePullSecrets", "", ListType::Map(&["name"])),
    ("initContainers", "", ListType::Map(&["name"])),
    ("ports", "containers", ListType::Map(&["containerPort", "protocol"])),
    ("ports", "initContainers", ListType::Map(&["containerPort", "protocol"])),
    ("ports", "spec", ListType::Map(&["port", "protocol"])),
    ("resourceClaims", "", ListType::Map(&["name"])),
    ("schedulingGates", "", ListType::Map(&["name"])),
    ("secrets", "", ListType::Map(&["name"])),
    ("topologySpreadConstraints", "", ListType::Map(&["topologyKey", "whenUnsatisfiable"])),
    ("volumeDevices", "", ListType::Map(&["devicePath"])),
    ("volumeMounts", "", ListType::Map(&["mountPath"])),
    ("volumes", "spec", ListType::Map(&["name"])),
];

/// How the elements of the list `field` inside `parent` are identified, in an object of `api_version`.
pub(super) fn of(api_version: &str, parent: &str, field: &str) -> ListType {
    match (parent, field) {
        ("metadata", "ownerReferences") => return ListType::Map(&["uid"]),
        ("metadata", "finalizers") => return ListType::Set,
        _ => {}
    }
    if !is_built_in(api_version) {
        return ListType::Atomic;
    }
    let named = BUILT_IN.iter().find(|(name, inside, _)| *name == field && (inside.is_empty() || *inside == parent));
    named.map_or(ListType::Atomic, |(_, _, list_type)| *list_type)
}

/// Whether a kind of this `apiVersion` is served by Kubernetes itself: custom groups need a domain of their own, and
/// `*.k8s.io` of built-in groups is reserved.
pub(super) fn is_built_in(api_version: &str) -> bool {
    match api_version.split_once('/') {
        None => true,
        Some((group, _)) => !group.contains('.') || group.ends_with(".k8s.io"),
    }
}

/// The value a merge key has when it is not written.
pub(super) fn default_of(key: &str) -> Option<&'static str> {
    (key == "protocol").then_some("TCP")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_depend_on_where_they_are() {
        assert_eq!(of("v1", "spec", "ports"), ListType::Map(&["port", "protocol"]));
        assert_eq!(of("batch/v1", "containers", "ports"), ListType::Map(&["containerPort", "protocol"]));
        assert_eq!(of("discovery.k8s.io/v1", "", "ports"), ListType::Atomic);
    }

    #[test]
    fn custom_kinds_are_atomic_but_for_their_metadata() {
        assert_eq!(of("flux-framework.org/v1alpha2", "spec", "containers"), ListType::Atomic);
        assert_eq!(of("flux-framework.org/v1alpha2", "metadata", "finalizers"), ListType::Set);
    }
}
