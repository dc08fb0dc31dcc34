//! Names of the objects made for a MiniCluster or a burst, and which names can bear them.

/// Longest name of a MiniCluster: `<name>-entrypoint` is also the name of a volume, which is a DNS label (63).
/// Host names (`<name>-<index>`) and every other name below fit as well then.
pub(crate) const MAX_NAME: usize = 63 - "-entrypoint".len();

/// ConfigMap with scripts and configuration; upstream's name.
pub fn entrypoint(name: &str) -> String {
    format!("{name}-entrypoint")
}

/// ConfigMap with the program of the ends of the tunnel.
pub fn ends(name: &str) -> String {
    format!("{name}-ends")
}

/// Pod with the containers of `spec.services`; upstream's name.
pub fn services(name: &str) -> String {
    format!("{name}-services")
}

/// Secret with the curve certificate.
pub fn curve(name: &str) -> String {
    format!("{name}-curve")
}

/// Whether a Secret is named as the credentials of an instance are.
pub fn is_credential(secret: &str) -> bool {
    [curve(""), restful("")].iter().any(|suffix| secret.ends_with(suffix.as_str()))
}

/// Secret and Service of the RESTful server.
pub fn restful(name: &str) -> String {
    format!("{name}-restful")
}

/// The claim of a volume that is made for a MiniCluster. No name of a MiniCluster contains a dot.
pub fn claim(name: &str, volume: &str) -> String {
    format!("{name}.{volume}")
}

/// The PersistentVolume for that claim; it is of the whole cluster.
pub fn persistent_volume(namespace: &str, name: &str, volume: &str) -> String {
    format!("{namespace}.{name}.{volume}")
}

/// The Service behind which the lead broker is found: on the root, of type NodePort or LoadBalancer, for the root's
/// name; on a provider, without selector, for the burst's name.
pub fn lead(name: &str) -> String {
    format!("{name}-lead")
}

/// The Job that pulls the images of a hosted burst ahead.
pub fn warm_up(slot: &str) -> String {
    format!("{slot}-warm-up")
}

/// The slot that a Job of this name pulls images for.
pub fn warmed_up(job: &str) -> Option<&str> {
    job.strip_suffix("-warm-up")
}

/// The ProvisioningRequest of a hosted burst, and the PodTemplate that it is about.
pub fn scale_up(slot: &str) -> String {
    format!("{slot}-scale-up")
}

/// The Workload of a MiniCluster that MultiKueue runs in another cluster.
pub fn workload(name: &str) -> String {
    format!("minicluster-{name}")
}

/// Host name of the pod with this index, which is also its broker's name in the host list.
pub fn host(name: &str, index: usize) -> String {
    format!("{name}-{index}")
}

/// Name of the burst at `position` of `flux.bursting.clusters` that the user gave no name. It carries the root's
/// name, so that two roots can burst onto one peer.
pub fn default_burst(root: &str, position: usize) -> String {
    format!("{root}-burst-{position}")
}

/// Name of the Burst object of slot `slot`, in the root's namespace.
///
/// A slot named by the user carries the root's name and a dot in front, which no root's name contains: two roots of one
/// namespace may use the same slot name on different peers. Default names differ by themselves.
pub fn burst_object(root: &str, slot: &str) -> String {
    let default = slot
        .strip_prefix(root)
        .and_then(|rest| rest.strip_prefix("-burst-"))
        .is_some_and(|position| !position.is_empty() && position.bytes().all(|b| b.is_ascii_digit()));
    if default { slot.to_owned() } else { format!("{root}.{slot}") }
}

/// Name that the MiniCluster of a FluxJob has on the peer it was sent to: those of other clusters, and of that peer itself,
/// may be called the same.
pub fn sent(job: &str, uid: &str) -> String {
    let suffix: String = uid.chars().filter(char::is_ascii_hexdigit).take(6).collect();
    let most = MAX_NAME - suffix.len() - 1;
    let head: String = job.chars().take(most).collect();
    format!("{}-{}", head.trim_end_matches('-'), suffix.to_ascii_lowercase())
}

/// Name of the Burst object of a FluxJob that was sent, in its namespace. No Burst of a MiniCluster has two dots.
pub fn sent_burst(job: &str) -> String {
    format!("{job}.sent.fluxjob")
}

/// Whether a Burst of this name is one that a FluxJob is sent as.
pub fn is_of_sent_job(burst: &str) -> bool {
    burst.ends_with(".sent.fluxjob")
}

/// Secret with the authority that signs the identity in Secret `identity`, where the agent made both.
pub fn authority(identity: &str) -> String {
    format!("{identity}-ca")
}

/// A name that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Longer than [`MAX_NAME`].
    #[error(
        "the {what} {name:?} has {length} characters, at most {MAX_NAME} are possible: \
         names of other objects and host names are made from it; choose a shorter one"
    )]
    TooLong {
        /// What is named.
        what: &'static str,
        /// The name.
        name: String,
        /// Its length.
        length: usize,
    },
    /// No DNS-1035 label.
    #[error(
        "the {what} {name:?} cannot be the name of a service: use lower case letters, digits and '-', \
         begin with a letter and end with a letter or a digit"
    )]
    NotALabel {
        /// What is named.
        what: &'static str,
        /// The name.
        name: String,
    },
}

/// Whether a MiniCluster (or the slot of a burst, which becomes one) can have this name: a DNS-1035 label (RFC 1035
/// section 2.3.1, as Kubernetes reads it) short enough for all that is derived from it. `what` is how messages call it,
/// for example `MiniCluster` or `burst`.
///
/// # Errors
/// What is wrong with the name, for the user to read.
pub fn validate(what: &'static str, name: &str) -> Result<(), NameError> {
    if !is_label(name) {
        return Err(NameError::NotALabel { what, name: name.to_owned() });
    }
    if name.len() > MAX_NAME {
        return Err(NameError::TooLong { what, name: name.to_owned(), length: name.len() });
    }
    Ok(())
}

/// Lower-case letters, digits and `-`; a letter first, no `-` last. The length is checked apart.
fn is_label(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    name.bytes().all(inner)
        && name.bytes().next().is_some_and(|b| b.is_ascii_lowercase())
        && name.bytes().next_back().is_some_and(|b| b != b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_labels_that_leave_room_for_what_is_derived() {
        let longest = "a".repeat(MAX_NAME);
        for good in ["a", "flux-sample", "a1", longest.as_str()] {
            assert_eq!(validate("MiniCluster", good), Ok(()), "{good}");
        }
        for bad in ["", "1cluster", "my.cluster", "-a", "a-", "A", "a_b", "é"] {
            assert!(matches!(validate("MiniCluster", bad), Err(NameError::NotALabel { .. })), "{bad}");
        }
        let error = validate("burst", &"a".repeat(60)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "the burst {:?} has 60 characters, at most 52 are possible: names of other objects and host names are \
                 made from it; choose a shorter one",
                "a".repeat(60)
            )
        );
    }

    #[test]
    fn the_longest_name_fits_every_dns_label_made_from_it() {
        let name = "a".repeat(MAX_NAME);
        let index = i32::MAX as usize - 1;
        for derived in
            [entrypoint(&name), services(&name), curve(&name), lead(&name), restful(&name), host(&name, index)]
        {
            assert!(derived.len() <= 63, "{derived}");
        }
    }

    #[test]
    fn burst_objects_of_different_roots_never_share_a_name() {
        assert_eq!(burst_object("flux-sample", &default_burst("flux-sample", 0)), "flux-sample-burst-0");
        assert_eq!(burst_object("flux-sample", "burst-0"), "flux-sample.burst-0");
        let names = [
            burst_object("a", "a-burst-0"),
            burst_object("b", "a-burst-0"),
            burst_object("a-burst-0", "a-burst-0"),
            burst_object("a", "a-burst-0-burst-0"),
            burst_object("a-burst-0", "a-burst-0-burst-0"),
        ];
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{names:?}");
    }
}
