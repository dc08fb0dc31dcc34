//! Whether a hello is accepted.

use tributary_contract::{ClusterUid, PeerName};

use super::inbox::Strange;
use crate::wire::messages::Hello;
use crate::wire::registry::CloseCode;
use crate::wire::version::WireVersion;

/// Whom we talk to, as far as we know before the hello.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expected {
    /// The name in the certificate, which is also the name of the ClusterPeer.
    pub name: PeerName,
    /// The pinned cluster UID; `None` on first contact.
    pub cluster_uid: Option<ClusterUid>,
    /// The version the connection was made for; `None`: the transport does not agree on one, the hellos do.
    pub version: Option<WireVersion>,
}

/// Why a connection ends: what the peer is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ending {
    /// The code.
    pub code: CloseCode,
    /// One sentence.
    pub reason: String,
}

impl Ending {
    /// An ending with its sentence.
    pub(crate) fn new(code: CloseCode, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into() }
    }
}

/// Judges the peer's hello; returns the version to speak.
///
/// # Errors
/// The ending, if the hello is not acceptable.
pub(crate) fn judge(ours: &Hello, expected: &Expected, theirs: &Hello) -> Result<WireVersion, Ending> {
    let version = ours.versions.common(theirs.versions).ok_or_else(|| {
        let (a, b) = (ours.versions, theirs.versions);
        Ending::new(
            CloseCode::IncompatibleVersion,
            format!(
                "no common version: {} (agent {}) speaks {} to {}, {} (agent {}) speaks {} to {}; upgrade the older one",
                ours.cluster,
                ours.agent_version,
                a.min.0,
                a.max.0,
                theirs.cluster,
                theirs.agent_version,
                b.min.0,
                b.max.0
            ),
        )
    })?;
    if let Some(made_for) = expected.version
        && made_for != version
    {
        let text = format!("the connection is of version {}, the hellos agree on {}", made_for.0, version.0);
        return Err(Ending::new(CloseCode::Protocol, text));
    }
    if theirs.cluster != expected.name {
        return Err(Ending::new(
            CloseCode::WrongIdentity,
            format!(
                "the certificate is of cluster {}, the hello of {}; make cluster.name and the certificate agree",
                expected.name, theirs.cluster
            ),
        ));
    }
    if let Some(pinned) = &expected.cluster_uid
        && *pinned != theirs.cluster_uid
    {
        return Err(wrong_cluster(theirs, pinned));
    }
    if theirs.cluster_uid == ours.cluster_uid {
        return Err(Ending::new(
            CloseCode::WrongClusterUid,
            format!(
                "{} has the UID of {} itself: one is a copy of the other, so they cannot be peers; build one of them anew",
                expected.name, ours.cluster
            ),
        ));
    }
    Ok(version)
}

/// The ending for an accepted hello whose words do not count.
pub(crate) fn not_admitted(theirs: &Hello, strange: &Strange) -> Ending {
    match strange {
        Strange::OtherCluster(known) => wrong_cluster(theirs, known),
        Strange::OldLeader(newer) => Ending::new(
            CloseCode::StaleEpoch,
            format!(
                "{} speaks for leadership {}, {} was heard already: an older leader, or a copy of the cluster; if its \
                 Lease was deleted, restart the agents that refuse it",
                theirs.cluster, theirs.epoch.0, newer.0
            ),
        ),
    }
}

fn wrong_cluster(theirs: &Hello, pinned: &ClusterUid) -> Ending {
    Ending::new(
        CloseCode::WrongClusterUid,
        format!(
            "{} shows cluster UID {}, pinned is {pinned}; if the cluster was rebuilt, change clusterUID of its \
             ClusterPeer",
            theirs.cluster, theirs.cluster_uid
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::hello;
    use crate::wire::version::WireVersions;

    #[test]
    fn what_is_refused_and_what_the_peer_is_told() {
        let ours = hello("west");
        let newest = WireVersions::OURS.max;
        let expected = |uid: Option<&str>| Expected {
            name: "east".into(),
            cluster_uid: uid.map(ClusterUid::from),
            version: Some(newest),
        };
        assert_eq!(judge(&ours, &expected(None), &hello("east")), Ok(newest));
        assert_eq!(judge(&ours, &expected(Some("uid-east")), &hello("east")), Ok(newest));

        let newer = WireVersions { min: WireVersion(8), max: WireVersion(9) };
        let refused: Vec<Ending> = [
            (expected(None), Hello { versions: newer, agent_version: "9.0.0".into(), ..hello("east") }),
            (Expected { version: Some(WireVersion(1)), ..expected(None) }, hello("east")),
            (expected(None), hello("north")),
            (expected(Some("uid-old")), hello("east")),
            (expected(None), Hello { cluster_uid: "uid-west".into(), ..hello("east") }),
        ]
        .into_iter()
        .map(|(expected, theirs)| judge(&ours, &expected, &theirs).unwrap_err())
        .collect();
        insta::assert_debug_snapshot!(refused);
        assert!(refused.iter().all(|ending| ending.reason.len() <= crate::wire::limits::REASON));
    }
}
