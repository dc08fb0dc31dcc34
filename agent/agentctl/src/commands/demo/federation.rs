//! The federation of a demo: an identity and a configuration for each agent, and a ClusterPeer on both sides of each
//! pair.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::try_join_all;
use jiff::Timestamp;
use kube::api::{Api, ObjectMeta, Patch, PatchParams};
use tributary::api::labels::manager;
use tributary::api::peer::{ClusterPeer, ClusterPeerSpec, ImportPolicy};
use tributary::federation::identity::Authority;
use tributary::federation::identity::files::Existing;
use tributary_sandbox::Access;

use super::clusters::DemoCluster;
use super::ground::{mark, marked};
use super::progress::Progress;
use super::root::NAMESPACE;
use crate::commands::peering;
use crate::error::{Failure, Result, failed};

/// Name of the demo's federation.
const FEDERATION: &str = "tributary-demo";
/// The identities are made for one run.
const VALIDITY: Duration = Duration::from_secs(30 * 24 * 3600);

/// An agent to be: its files, and the ports it will listen on, held until it starts.
pub(super) struct Member {
    /// Name of its cluster.
    pub(super) cluster: String,
    /// Where its files are.
    pub(super) directory: PathBuf,
    /// Its configuration.
    pub(super) config: PathBuf,
    /// Where peers reach it.
    pub(super) listen: SocketAddr,
    admin: TcpListener,
    health: TcpListener,
    _peers: UdpSocket,
    addresses: (SocketAddr, SocketAddr),
}

impl Member {
    /// Frees the ports for the agent; returns the addresses of its admin API and of its probes.
    pub(super) fn release_ports(self) -> (SocketAddr, SocketAddr) {
        drop((self.admin, self.health, self._peers));
        self.addresses
    }
}

/// Makes an authority, and files for an agent of each cluster in `directory`.
pub(super) fn found(
    directory: &Path,
    clusters: &[DemoCluster],
    agent_namespace: &str,
    progress: &Progress,
) -> Result<Vec<Member>> {
    let step = progress.step("identities", "making an authority and issuing an identity for each cluster");
    let now = progress.clock().wall();
    let failed = failed("failed to make identities for the agents", "is $TMPDIR writable?");
    let authority = Authority::create(FEDERATION, now).map_err(|error| failed(error.into()))?;
    let members = clusters.iter().map(|cluster| member(&authority, directory, cluster, agent_namespace, now));
    let members = members.collect::<anyhow::Result<Vec<_>>>().map_err(&failed)?;
    step.done(&format!("issued by the federation {FEDERATION}"));
    Ok(members)
}

/// Writes a ClusterPeer for every other cluster into each. Only the root's cluster may place anything in another.
pub(super) async fn introduce(clusters: &[DemoCluster], members: &[Member], agent_namespace: &str) -> Result<()> {
    let pairs = clusters.iter().flat_map(|here| members.iter().map(move |there| (here, there)));
    try_join_all(pairs.filter(|(here, there)| here.name != there.cluster).map(|(here, there)| async move {
        let failed = || {
            Failure::new(format!("failed to write ClusterPeer {agent_namespace}/{} in {}", there.cluster, here.name))
        };
        let peers: Api<ClusterPeer> = Api::namespaced(here.client.clone(), agent_namespace);
        let existing = peers.get_opt(&there.cluster).await.map_err(|error| failed().because(error))?;
        if existing.is_some_and(|existing| !marked(&existing)) {
            return Err(failed()
                .because("it exists already, and not from a demo")
                .hint("the demo changes nothing of yours: use a context of another name, or other clusters"));
        }
        let wanted = cluster_peer(there, clusters[0].name == there.cluster, agent_namespace);
        let parameters = PatchParams::apply(manager::AGENTCTL).force();
        peers
            .patch(&there.cluster, &parameters, &Patch::Apply(&wanted))
            .await
            .map_err(|error| failed().because(error))?;
        Ok(())
    }))
    .await?;
    Ok(())
}

fn cluster_peer(there: &Member, is_root: bool, agent_namespace: &str) -> ClusterPeer {
    let import = ImportPolicy { namespaces: vec![NAMESPACE.to_owned()], ..ImportPolicy::default() };
    let spec = ClusterPeerSpec {
        endpoints: vec![there.listen.to_string()],
        import: is_root.then_some(import),
        export: Some(peering::export(false)),
        ..ClusterPeerSpec::default()
    };
    let mut peer = ClusterPeer::new(&there.cluster, spec);
    peer.metadata = ObjectMeta {
        name: Some(there.cluster.clone()),
        namespace: Some(agent_namespace.to_owned()),
        ..ObjectMeta::default()
    };
    mark(&mut peer.metadata);
    peer
}

fn member(
    authority: &Authority,
    directory: &Path,
    cluster: &DemoCluster,
    agent_namespace: &str,
    now: Timestamp,
) -> anyhow::Result<Member> {
    let directory = directory.join(&cluster.name);
    let identity = directory.join("identity");
    authority.issue(&cluster.name, now, VALIDITY)?.write(&identity, Existing::Replace)?;
    let (admin, health) = (TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?, TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
    let peers = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let addresses = [peers.local_addr()?, admin.local_addr()?, health.local_addr()?];
    let config = directory.join("agent.toml");
    fs::write(&config, toml(&cluster.name, &cluster.agent_access, agent_namespace, &identity, addresses))?;
    let [listen, admin_listens, health_listens] = addresses;
    Ok(Member {
        cluster: cluster.name.clone(),
        config,
        listen,
        addresses: (admin_listens, health_listens),
        directory,
        admin,
        health,
        _peers: peers,
    })
}

/// The configuration file of an agent: what it is told. JSON's strings are TOML's basic strings.
fn toml(
    cluster: &str,
    access: &Access,
    namespace: &str,
    identity: &Path,
    [listen, admin, health]: [SocketAddr; 3],
) -> String {
    let text = |value: &str| serde_json::Value::from(value).to_string();
    let path = |value: &Path| text(&value.to_string_lossy());
    let address = |value: SocketAddr| text(&value.to_string());
    format!(
        "[cluster]\nname = {name}\n\n\
         [kubernetes]\nkubeconfig = {kubeconfig}\ncontext = {context}\nnamespace = {namespace}\n\n\
         [federation]\nlisten = {listen}\nadvertise = [{listen}]\nidentity = {{ dir = {identity} }}\n\n\
         [admin]\nlisten = {admin}\n\n\
         [health]\nlisten = {health}\n",
        name = text(cluster),
        kubeconfig = path(&access.kubeconfig),
        context = text(&access.context),
        namespace = text(namespace),
        listen = address(listen),
        identity = path(identity),
        admin = address(admin),
        health = address(health),
    )
}

#[cfg(test)]
mod tests {
    use tributary::config::{Config, IdentityConfig};

    use super::*;

    #[test]
    fn agents_can_read_what_they_are_told() {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let access = Access {
            name: "east".into(),
            kubeconfig: "/tmp/with \"quotes\" and \\ é".into(),
            context: "admin@east".into(),
            simulated: true,
        };
        let identity = Path::new("/tmp/identity");
        let text = toml("east", &access, "tributary-system", identity, [1, 2, 3].map(address));
        let config = Config::from_toml(&text).unwrap();
        assert_eq!(config.cluster.name, "east");
        assert_eq!(config.kubernetes.kubeconfig.as_deref(), Some(&*access.kubeconfig));
        assert_eq!(config.kubernetes.context.as_deref(), Some("admin@east"));
        assert_eq!(config.federation.identity, IdentityConfig::Dir("/tmp/identity".into()));
        assert_eq!(config.federation.advertise, ["127.0.0.1:1"]);
        assert_eq!(
            (config.federation.listen, config.admin.listen, config.health.listen),
            (address(1), address(2), address(3))
        );
    }
}
