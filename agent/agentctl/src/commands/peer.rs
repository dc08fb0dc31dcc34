//! `agentctl peer …`: writes, changes and removes ClusterPeers.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tributary::api::burst::{Burst, BurstStatus};
use tributary::api::hosted_burst::{BurstPhase, BurstRun, HostedBurst};
use tributary::api::labels::manager;
use tributary::api::peer::{ClusterPeer, ClusterPeerSpec, TrustUpdates};
use tributary::federation::enrol;

use super::consent::agreed;
use super::watched::Watched;
use crate::cli::{ImportFlags, Peer, PeerAdd, PeerDrain, PeerSuspend, Target};
use crate::error::{Failure, Result, failed};
use crate::{document, kubernetes, output, paste};

mod removal;
#[cfg(test)]
mod tests;

/// How often is looked whether a drained peer is empty.
const POLL: Duration = Duration::from_secs(1);
/// How often a ClusterPeer is written again that somebody else has changed since it was read.
const OVERTAKEN: usize = 5;

/// Runs `agentctl peer …`.
pub(crate) async fn run(target: &Target, command: Peer) -> Result<()> {
    match command {
        Peer::Add(add) => run_add(target, &add).await,
        Peer::List(list) => super::peers::run(target, &list).await,
        Peer::Remove(remove) => removal::run(target, &remove).await,
        Peer::Drain(drain) => run_drain(target, &drain).await,
        Peer::Suspend(suspend) => run_suspend(target, &suspend).await,
        Peer::Resume(peer) => run_resume(target, &peer.name).await,
    }
}

async fn run_add(target: &Target, add: &PeerAdd) -> Result<()> {
    let peer = cluster_peer(target, add)?;
    let client = kubernetes::client(target).await?;
    let wanted = Wanted { peer: &peer, word: Word::Owner, import: &add.import, check: &|_| Ok(()) };
    if add.dry_run {
        return output::print(&document::yaml(&to_print(&client, wanted).await?)?);
    }
    let written = write(&client, &target.agent_namespace, wanted).await?;
    output::print(&format!("clusterpeer.tributary.dev/{} written\nimports {}\n", add.name, imports(&written)))
}

/// What is printed instead of written.
async fn to_print(client: &Client, wanted: Wanted<'_>) -> Result<ClusterPeer> {
    let (namespace, name) = (wanted.peer.namespace().unwrap_or_default(), wanted.peer.name_any());
    wanted.over(kubernetes::get(client, &namespace, &name).await?.as_ref())
}

/// Whose word a ClusterPeer is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    /// The options of its owner here.
    Owner,
    /// What the cluster that it stands for says of itself over the network, where it has shown no key.
    Cluster,
    /// The same, as the API server over there has it.
    ApiServer,
}

/// A ClusterPeer that is to be there. One that exists keeps every field that is not stated, and every namespace of its import: who
/// joins again, or changes a quota, does not mean to take back trust or permissions.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub peer: &'a ClusterPeer,
    pub word: Word,
    pub import: &'a ImportFlags,
    /// Whether what exists may become it. The very object that is changed is judged: between the first look and the change is a
    /// question, or a network.
    pub check: &'a dyn Fn(Option<&ClusterPeer>) -> Result<()>,
}

impl Wanted<'_> {
    /// What is changed of the one that exists; `None`: there is none.
    fn change(&self, existing: Option<&ClusterPeer>) -> Result<Option<Value>> {
        let (namespace, name) = (self.peer.namespace().unwrap_or_default(), self.peer.name_any());
        check_limits(existing, self.import, &not_written(&namespace, &name))?;
        (self.check)(existing)?;
        Ok(existing.map(|existing| stated(existing, (self.peer, self.word), self.import)))
    }

    /// What is there once it is written, as it is written into a file.
    pub(super) fn over(&self, existing: Option<&ClusterPeer>) -> Result<ClusterPeer> {
        let Some((change, existing)) = self.change(existing)?.zip(existing) else { return Ok(self.peer.clone()) };
        let mut whole = json!({"metadata": existing.metadata, "spec": existing.spec});
        json_patch::merge(&mut whole, &change);
        let peer = serde_json::from_value::<ClusterPeer>(whole).expect("what is stated are fields of it");
        let ObjectMeta { name, namespace, labels, mut annotations, .. } = peer.metadata;
        annotations.get_or_insert_default().remove(kubernetes::LAST_APPLIED);
        let [labels, annotations] = [labels, annotations].map(|pairs| pairs.filter(|pairs| !pairs.is_empty()));
        let metadata = ObjectMeta { name, namespace, labels, annotations, ..ObjectMeta::default() };
        Ok(ClusterPeer { metadata, ..peer })
    }
}

/// Writes a ClusterPeer, and returns what it is then.
pub(super) async fn write(client: &Client, namespace: &str, wanted: Wanted<'_>) -> Result<ClusterPeer> {
    let (peers, name): (Api<ClusterPeer>, _) = (Api::namespaced(client.clone(), namespace), wanted.peer.name_any());
    let failed = |error| refused(namespace, &name, error);
    let changed = kubernetes::patch_params();
    let created = PostParams { field_manager: changed.field_manager.clone(), ..PostParams::default() };
    let mut again = 0..OVERTAKEN;
    loop {
        let existing = peers.get_opt(&name).await.map_err(failed)?;
        let written = match wanted.change(existing.as_ref())? {
            Some(change) => peers.patch(&name, &changed, &Patch::Merge(change)).await,
            None => peers.create(&created, wanted.peer).await,
        };
        match written {
            Err(kube::Error::Api(status)) if status.code == 409 && again.next().is_some() => {}
            written => return written.map_err(failed),
        }
    }
}

/// Whether limits that are stated are for some namespace. Only a peer with an import has any before.
pub(super) fn check_limits(existing: Option<&ClusterPeer>, import: &ImportFlags, failed: &str) -> Result<()> {
    if existing.is_some_and(|existing| existing.spec.import.is_some()) || !import.names_nothing() {
        return Ok(());
    }
    Err(Failure::new(failed).because("limits are stated, and no namespace").hint(
        "say in which namespaces it may place bursts, as with --import default. Only a ClusterPeer that has an import keeps those \
         that it names",
    ))
}

/// From where a ClusterPeer lets bursts come in.
pub(super) fn imports(peer: &ClusterPeer) -> String {
    let namespaces = peer.spec.import.as_ref().map(|import| import.namespaces.as_slice()).unwrap_or_default();
    let from = match namespaces {
        [] => "nothing".to_owned(),
        some if some.iter().any(|one| one == "*") => "from any namespace".to_owned(),
        [one] => format!("from namespace {one}"),
        some => format!("from namespaces {}", some.join(", ")),
    };
    format!("{from} of {}", peer.name_any())
}

/// What is stated of a ClusterPeer that exists, field by field. If it is another one meanwhile, nothing is written.
fn stated(existing: &ClusterPeer, (peer, word): (&ClusterPeer, Word), import: &ImportFlags) -> Value {
    let ClusterPeerSpec {
        endpoints,
        trust_bundle,
        trust_updates,
        cluster_uid,
        import: _,
        export: _,
        suspend: _,
        drain: _,
        budget: _,
        price: _,
    } = &peer.spec;
    let known = existing.spec.import.as_ref().map(|import| import.namespaces.as_slice()).unwrap_or_default();
    // A cluster does not know by which names or translated addresses it is reached from here, nor whether it is let change them.
    let (endpoints, trust_updates) = match word {
        Word::Owner => (endpoints.clone(), Some(trust_updates).filter(|said| **said != TrustUpdates::default())),
        Word::Cluster | Word::ApiServer => (enrol::endpoints(endpoints, &existing.spec.endpoints), None),
    };
    // Over the network it shows none that is not known, and its owner here may have added the next one.
    let trust_bundle = trust_bundle.as_ref().filter(|_| word != Word::Cluster);
    let mut spec = json!({
        "endpoints": (!endpoints.is_empty()).then_some(endpoints),
        "trustBundle": trust_bundle,
        "trustUpdates": trust_updates,
        "clusterUID": cluster_uid,
        "import": import.fields(known),
    });
    if let Value::Object(fields) = &mut spec {
        fields.retain(|_, value| !value.is_null());
    }
    let labels = peer.metadata.labels.clone().unwrap_or_default();
    json!({"metadata": {"labels": labels, "resourceVersion": existing.resource_version()}, "spec": spec})
}

/// Whether a ClusterPeer could be written: nothing is.
pub(super) async fn try_write(client: &Client, namespace: &str, peer: &ClusterPeer) -> Result<()> {
    let (peers, name): (Api<ClusterPeer>, _) = (Api::namespaced(client.clone(), namespace), peer.name_any());
    let parameters = PatchParams::apply(manager::AGENTCTL).force().dry_run();
    let tried = peers.patch(&name, &parameters, &Patch::Apply(peer)).await;
    tried.map(drop).map_err(|error| refused(namespace, &name, error))
}

pub(super) fn not_written(namespace: &str, name: &str) -> String {
    format!("failed to write ClusterPeer {namespace}/{name}")
}

fn refused(namespace: &str, name: &str, error: kube::Error) -> Failure {
    let hint = match &error {
        kube::Error::Api(status) if status.code == 409 => {
            "somebody else changes it at the same time: see what it is then (`agentctl peers`), and do it again"
        }
        _ => "are the CRDs installed, and may you write ClusterPeers in that namespace?",
    };
    Failure::new(not_written(namespace, name)).because(error).hint(hint)
}

/// The ClusterPeer `name`.
async fn existing(client: &Client, target: &Target, name: &str) -> Result<ClusterPeer> {
    let namespace = &target.agent_namespace;
    kubernetes::get(client, namespace, name).await?.ok_or_else(|| {
        Failure::new(format!("there is no ClusterPeer {namespace}/{name}"))
            .hint("`agentctl peers` shows those there are; --agent-namespace names another namespace")
    })
}

/// Changes fields of a ClusterPeer that exists.
async fn change(target: &Target, client: &Client, name: &str, word: &str, spec: Value) -> Result<()> {
    let peers: Api<ClusterPeer> = Api::namespaced(client.clone(), &target.agent_namespace);
    kubernetes::merge(&peers, word, name, json!({"spec": spec})).await
}

async fn run_suspend(target: &Target, suspend: &PeerSuspend) -> Result<()> {
    let (client, name) = (kubernetes::client(target).await?, &suspend.name);
    let peer = existing(&client, target, name).await?;
    if !peer.spec.suspend {
        ask(target, &client, &peer, suspend.yes, cost_of_suspend).await?;
    }
    change(target, &client, name, "suspend", json!({"suspend": true})).await?;
    output::print(&format!("clusterpeer.tributary.dev/{name} suspended\n"))
}

async fn run_resume(target: &Target, name: &str) -> Result<()> {
    let client = kubernetes::client(target).await?;
    let (spec, told) = resumed(name, &existing(&client, target, name).await?.spec);
    change(target, &client, name, "resume", spec).await?;
    output::print(&paste::whole(&told, target))
}

/// What a peer is after it was resumed, and what is said of it. Who suspended a drained peer has not meant to use it again.
fn resumed(name: &str, before: &ClusterPeerSpec) -> (Value, String) {
    let told = format!("clusterpeer.tributary.dev/{name} resumed");
    match before.suspend && before.drain {
        true => (
            json!({"suspend": false}),
            format!("{told}; it is still drained, and used again after one more `agentctl peer resume {name}`\n"),
        ),
        false => (json!({"suspend": false, "drain": false}), told + "\n"),
    }
}

/// Asks whoever takes a peer away from what is on it.
pub(super) async fn ask(
    target: &Target,
    client: &Client,
    peer: &ClusterPeer,
    yes: bool,
    cost: impl FnOnce(&ClusterPeer, &[Burst], &[HostedBurst]) -> Option<String>,
) -> Result<()> {
    let placed = async { placed(client, &Watched::of(client, &target.agent_namespace).await?, peer).await };
    let cost = match placed.await {
        // Who does not want to be asked need not be able to look.
        Err(_) if yes => None,
        Err(failure) => return Err(failure.hint("`--yes` does it without a look at what is lost")),
        Ok((bursts, hosted)) => {
            tell_of_another(target, peer, &bursts);
            cost(peer, &bursts, &hosted)
        }
    };
    agreed(cost, yes, target)
}

fn cost_of_drain(peer: &ClusterPeer, bursts: &[Burst], hosted: &[HostedBurst]) -> Option<String> {
    let (name, all) = (peer.name_any(), in_use(peer, bursts, hosted));
    (!all.is_empty()).then(|| {
        format!(
            "draining {name} releases {}\n  their brokers end: jobs on them get the drain time, and no more; ours are placed elsewhere \
             if they may. Logs of what has ended there are deleted",
            all.join(", ")
        )
    })
}

/// Results outlast it.
fn cost_of_suspend(peer: &ClusterPeer, bursts: &[Burst], hosted: &[HostedBurst]) -> Option<String> {
    let ended =
        |one: &Burst| one.status.as_ref().and_then(|status| status.run.as_ref()).is_some_and(BurstRun::has_ended);
    let bursts: Vec<_> = bursts.iter().filter(|one| !ended(one)).cloned().collect();
    let hosted: Vec<_> = hosted.iter().filter(|one| !one.has_ended()).cloned().collect();
    let (name, running) = (peer.name_any(), in_use(peer, &bursts, &hosted));
    (!running.is_empty()).then(|| {
        format!(
            "suspending {name} ends the connection, which {} need\n  if it is not resumed before their lease is over, their brokers \
             end, and the jobs on them",
            running.join(", ")
        )
    })
}

async fn run_drain(target: &Target, drain: &PeerDrain) -> Result<()> {
    let (client, name) = (kubernetes::client(target).await?, &drain.name);
    let peer = existing(&client, target, name).await?;
    if !peer.spec.drain {
        ask(target, &client, &peer, drain.yes, cost_of_drain).await?;
    }
    change(target, &client, name, "drain", json!({"drain": true})).await?;
    output::print(&format!(
        "clusterpeer.tributary.dev/{name} is drained: nothing more is placed there or taken from it\n"
    ))?;
    if drain.wait.is_zero() {
        return Ok(());
    }
    let (watched, mut left) = (Watched::of(&client, &target.agent_namespace).await?, Vec::new());
    let emptied = async {
        loop {
            let (bursts, hosted) = placed(&client, &watched, &peer).await?;
            left = in_use(&peer, &bursts, &hosted);
            if left.is_empty() {
                return Ok::<_, Failure>(());
            }
            tokio::time::sleep(POLL).await;
        }
    };
    match tokio::time::timeout(drain.wait, emptied).await {
        Ok(emptied) => {
            emptied?;
            output::print(&format!("nothing is left on {name}, and nothing of it is left here\n"))
        }
        Err(_) => {
            let failure = Failure::new(format!("after {:?} peer {name} still has {}", drain.wait, left.join(", ")));
            Err(failure.hint(format!(
                "it goes on draining; what each waits for is said by `agentctl bursts`. The ranks of a peer that is out of contact \
                 are free after its lease if it is reached by a tunnel, else by `agentctl burst release --help`; to take the \
                 drain back: `agentctl peer resume {name}`"
            )))
        }
    }
}

/// All bursts, as the API server has them.
async fn placed(client: &Client, watched: &Watched, peer: &ClusterPeer) -> Result<(Vec<Burst>, Vec<HostedBurst>)> {
    let failed = failed(
        format!("failed to find out what is placed on {}, and what of it is here", peer.name_any()),
        "may you list Bursts and HostedBursts?",
    );
    let bursts = watched.all::<Burst>(client).await.map_err(&failed)?;
    let hosted = watched.all::<HostedBurst>(client).await.map_err(&failed)?;
    Ok((bursts, hosted))
}

/// What holds a peer: bursts of ours there, bursts of it here.
pub(super) fn in_use(peer: &ClusterPeer, bursts: &[Burst], hosted: &[HostedBurst]) -> Vec<String> {
    let name = peer.name_any();
    let is_there = |status: &BurstStatus| {
        status.peer.as_ref() == Some(&name)
            && !status.is_of_another(peer.pinned_uid())
            && !matches!(status.phase, BurstPhase::Released)
            && !status.run.as_ref().is_some_and(|run| run.logs_gone)
    };
    let placed = bursts.iter().filter(|burst| burst.status.as_ref().is_some_and(is_there));
    let ours = placed.map(|burst| format!("burst {}/{}", burst.namespace().unwrap_or_default(), burst.spec.slot));
    let theirs = hosted.iter().filter(|burst| burst.spec.peer == name);
    let theirs = theirs.map(|burst| format!("hosted {}/{}", burst.namespace().unwrap_or_default(), burst.spec.slot));
    ours.chain(theirs).collect()
}

/// Slots that an earlier cluster of this name holds: nothing that is done to the ClusterPeer frees them.
fn of_another(peer: &ClusterPeer, bursts: &[Burst]) -> Option<String> {
    let name = peer.name_any();
    // Those behind a tunnel come free by themselves.
    let is_another = |status: &BurstStatus| {
        let by_tunnel = status.holder().is_some_and(|holder| holder.tunnel);
        status.peer.as_ref() == Some(&name) && status.is_of_another(peer.pinned_uid()) && !by_tunnel
    };
    let held = bursts.iter().filter(|burst| burst.status.as_ref().is_some_and(is_another));
    let release = |burst: &Burst| {
        format!("`agentctl burst release {} --namespace {}`", burst.name_any(), burst.namespace().unwrap_or_default())
    };
    let all: Vec<String> = held.map(release).collect();
    (!all.is_empty()).then(|| {
        format!(
            "an earlier cluster of the name {name} holds slots of ours, and keeps them. Once nothing of ours runs there any more, \
             free them: {}",
            all.join(", ")
        )
    })
}

/// Says so to the person who changes the peer.
fn tell_of_another(target: &Target, peer: &ClusterPeer, bursts: &[Burst]) {
    if let Some(told) = of_another(peer, bursts) {
        output::remark(&paste::whole(&told, target));
    }
}

/// The ClusterPeer that `agentctl peer add` writes.
pub(crate) fn cluster_peer(target: &Target, add: &PeerAdd) -> Result<ClusterPeer> {
    let trust_bundle = match &add.trust_bundle {
        Some(path) => Some(std::fs::read_to_string(path).map_err(failed(
            format!("failed to read the trust bundle {}", path.display()),
            "--trust-bundle names the ca.crt of the peer's federation",
        ))?),
        None => None,
    };
    if let Some(bundle) = &trust_bundle
        && !bundle.contains("-----BEGIN CERTIFICATE-----")
    {
        return Err(Failure::new("the trust bundle holds no PEM certificate")
            .hint("it is the ca.crt that signed the peer's identity"));
    }
    let mut peer = ClusterPeer::new(
        &add.name,
        ClusterPeerSpec {
            endpoints: add.endpoints.clone(),
            trust_bundle,
            cluster_uid: add.cluster_uid.clone(),
            import: add.import.policy(),
            trust_updates: if add.trust_updates { TrustUpdates::FromPeer } else { TrustUpdates::Manual },
            ..ClusterPeerSpec::default()
        },
    );
    peer.metadata.namespace = Some(target.agent_namespace.clone());
    peer.metadata.labels = Some(labels(&add.labels)?).filter(|labels| !labels.is_empty());
    Ok(peer)
}

pub(super) fn labels(pairs: &[String]) -> Result<BTreeMap<String, String>> {
    let label = |pair: &String| match pair.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(Failure::new(format!("{pair:?} is not a label")).hint("write key=value")),
    };
    pairs.iter().map(label).collect()
}
