//! `agentctl peer …`: writes, changes and removes ClusterPeers.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tributary::api::burst::Burst;
use tributary::api::hosted_burst::{BurstPhase, BurstRun, HostedBurst};
use tributary::api::labels::manager;
use tributary::api::peer::{ClusterPeer, ClusterPeerSpec, TrustUpdates};
use tributary::federation::enrol;

use super::consent::agreed;
use super::watched::Watched;
use crate::cli::{ImportFlags, Peer, PeerAdd, PeerDrain, PeerSuspend, Target};
use crate::error::{Failure, Result};
use crate::{document, kubernetes, output, paste};

mod removal;

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
    if add.dry_run {
        check_limits(None, &add.import, &not_written(&target.agent_namespace, &add.name))?;
        return output::print(&document::yaml(&peer)?);
    }
    let client = kubernetes::client(target).await?;
    let wanted = Wanted { peer: &peer, word: Word::Owner, import: &add.import, check: &|_| Ok(()) };
    let written = write(&client, &target.agent_namespace, wanted).await?;
    output::print(&format!("clusterpeer.tributary.dev/{} written\nimports {}\n", add.name, imports(&written)))
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
    if !existing(&client, target, name).await?.spec.suspend {
        ask(target, &client, name, suspend.yes, cost_of_suspend).await?;
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
    name: &str,
    yes: bool,
    cost: impl FnOnce(&str, &[Burst], &[HostedBurst]) -> Option<String>,
) -> Result<()> {
    let placed = async { placed(client, &Watched::of(client, &target.agent_namespace).await?, name).await };
    let cost = match placed.await {
        // Who does not want to be asked need not be able to look.
        Err(_) if yes => None,
        Err(failure) => return Err(failure.hint("`--yes` does it without a look at what is lost")),
        Ok((bursts, hosted)) => cost(name, &bursts, &hosted),
    };
    agreed(cost, yes, target)
}

fn cost_of_drain(name: &str, bursts: &[Burst], hosted: &[HostedBurst]) -> Option<String> {
    let all = in_use(name, bursts, hosted);
    (!all.is_empty()).then(|| {
        format!(
            "draining {name} releases {}\n  their brokers end: jobs on them get the drain time, and no more; ours are placed elsewhere \
             if they may. Logs of what has ended there are deleted",
            all.join(", ")
        )
    })
}

/// Results outlast it.
fn cost_of_suspend(name: &str, bursts: &[Burst], hosted: &[HostedBurst]) -> Option<String> {
    let ended =
        |one: &Burst| one.status.as_ref().and_then(|status| status.run.as_ref()).is_some_and(BurstRun::has_ended);
    let bursts: Vec<_> = bursts.iter().filter(|one| !ended(one)).cloned().collect();
    let hosted: Vec<_> = hosted.iter().filter(|one| !one.has_ended()).cloned().collect();
    let running = in_use(name, &bursts, &hosted);
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
    if !existing(&client, target, name).await?.spec.drain {
        ask(target, &client, name, drain.yes, cost_of_drain).await?;
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
            left = busy(&client, &watched, name).await?;
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

/// What holds a peer, as the API server has it.
async fn busy(client: &Client, watched: &Watched, name: &str) -> Result<Vec<String>> {
    let (bursts, hosted) = placed(client, watched, name).await?;
    Ok(in_use(name, &bursts, &hosted))
}

async fn placed(client: &Client, watched: &Watched, name: &str) -> Result<(Vec<Burst>, Vec<HostedBurst>)> {
    let failed = |error: kube::Error| {
        Failure::new(format!("failed to find out what is placed on {name}, and what of it is here"))
            .because(error)
            .hint("may you list Bursts and HostedBursts?")
    };
    let bursts = watched.all::<Burst>(client).await.map_err(failed)?;
    let hosted = watched.all::<HostedBurst>(client).await.map_err(failed)?;
    Ok((bursts, hosted))
}

/// What holds a peer: bursts of ours there, bursts of it here.
pub(super) fn in_use(name: &str, bursts: &[Burst], hosted: &[HostedBurst]) -> Vec<String> {
    let placed =
        bursts.iter().filter(|burst| {
            burst.status.as_ref().is_some_and(|status| {
                status.peer.as_deref() == Some(name) && !matches!(status.phase, BurstPhase::Released)
            }) && !burst.status.as_ref().and_then(|status| status.run.as_ref()).is_some_and(|run| run.logs_gone)
        });
    let ours = placed.map(|burst| format!("burst {}/{}", burst.namespace().unwrap_or_default(), burst.spec.slot));
    let theirs = hosted.iter().filter(|burst| burst.spec.peer == name);
    let theirs = theirs.map(|burst| format!("hosted {}/{}", burst.namespace().unwrap_or_default(), burst.spec.slot));
    ours.chain(theirs).collect()
}

/// The ClusterPeer that `agentctl peer add` writes.
pub(crate) fn cluster_peer(target: &Target, add: &PeerAdd) -> Result<ClusterPeer> {
    let trust_bundle = match &add.trust_bundle {
        Some(path) => Some(std::fs::read_to_string(path).map_err(|error| {
            Failure::new(format!("failed to read the trust bundle {}", path.display()))
                .because(error)
                .hint("--trust-bundle names the ca.crt of the peer's federation")
        })?),
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

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tributary::api::peer::ImportPolicy;

    use super::*;
    use crate::cli::{Cli, Command};

    fn peer(line: &str) -> Result<ClusterPeer> {
        let cli = Cli::try_parse_from(line.split(' ')).unwrap();
        let Command::Peer(Peer::Add(add)) = cli.command else { panic!("{line}") };
        cluster_peer(&cli.target, &add)
    }

    #[test]
    fn every_option_becomes_a_field() {
        let peer = peer(
            "agentctl peer add west --peer-endpoint 203.0.113.7:30946 --peer-endpoint srv:west.example.org \
             --cluster-uid 1-2 -l region=us -l tier=gpu --import default --import hpc --max-bursts 4 --max-brokers 64 \
             --pod-security restricted --agent-namespace agents",
        );
        insta::assert_snapshot!(serde_saphyr::to_string(&peer.unwrap()).unwrap());
    }

    #[test]
    fn a_peer_that_exists_keeps_what_is_not_stated() {
        let stated = |line: &str| changed(line, &["hpc"])["spec"].clone();
        assert_eq!(changed("agentctl peer add west", &[])["metadata"], json!({"labels": {}, "resourceVersion": "7"}));
        assert_eq!(stated("agentctl peer add west"), json!({}));
        assert_eq!(
            stated(
                "agentctl peer add west -l tier=gpu --max-gpus 8 --max-memory 1Ti --max-offers-per-minute 10 --max-duration 8h \
                 --pod-security baseline"
            ),
            json!({"import": {"maxGpus": 8, "maxMemory": "1Ti", "maxOffersPerMinute": 10, "maxDuration": "8h",
                "podSecurity": "baseline"}})
        );
        assert_eq!(changed("agentctl peer add west -l tier=gpu", &[])["metadata"]["labels"], json!({"tier": "gpu"}));
        assert_eq!(stated("agentctl peer add west --peer-endpoint a:1"), json!({"endpoints": ["a:1"]}));
    }

    /// The danger: clusters are linked again, and a peer is reached no more, or changes what its owner here holds by himself.
    #[test]
    fn what_a_cluster_says_of_itself_takes_nothing_from_its_peer() {
        let of = |endpoints: &[&str], trust_updates| {
            let endpoints = endpoints.iter().map(|one| (*one).to_owned()).collect();
            ClusterPeer::new("west", ClusterPeerSpec { endpoints, trust_updates, ..ClusterPeerSpec::default() })
        };
        let known = of(&["srv:west.example.org", "a:1"], TrustUpdates::Manual);
        let said = of(&["a:1", "b:2"], TrustUpdates::FromPeer);
        for word in [Word::Cluster, Word::ApiServer] {
            let changed = stated(&known, (&said, word), &ImportFlags::default());
            assert_eq!(changed["spec"], json!({"endpoints": ["a:1", "b:2", "srv:west.example.org"]}));
        }
    }

    /// The danger: of a cluster that has replaced its authority twice, the owner here knows the next one already, and loses it.
    #[test]
    fn who_has_shown_no_key_changes_no_authority() {
        let spec = ClusterPeerSpec { trust_bundle: Some("one".into()), ..ClusterPeerSpec::default() };
        let (said, known) = (ClusterPeer::new("west", spec), ClusterPeer::new("west", ClusterPeerSpec::default()));
        for (word, bundle) in
            [(Word::Cluster, Value::Null), (Word::ApiServer, json!("one")), (Word::Owner, json!("one"))]
        {
            assert_eq!(
                stated(&known, (&said, word), &ImportFlags::default())["spec"]["trustBundle"],
                bundle,
                "{word:?}"
            );
        }
        let wanted = Wanted { peer: &said, word: Word::Cluster, import: &ImportFlags::default(), check: &|_| Ok(()) };
        assert_eq!(wanted.over(None).unwrap().spec.trust_bundle.as_deref(), Some("one"), "there was none");
    }

    /// The danger: what `link --dry-run` prints is committed, and takes away what the owner here has written.
    #[test]
    fn what_is_shown_is_what_is_written_over_a_peer() {
        let existing: ClusterPeer = serde_json::from_value(json!({
            "metadata": {"name": "west", "namespace": "tributary-system", "uid": "4-5", "resourceVersion": "7",
                "labels": {"tier": "gpu"}, "annotations": {kubernetes::LAST_APPLIED: "{}", "team": "hpc"}},
            "spec": {"endpoints": ["srv:west.example.org"], "trustBundle": "one", "trustUpdates": "Manual", "clusterUID": "1-2",
                "import": {"namespaces": ["hpc"], "maxBrokers": 4}, "drain": true},
            "status": {"connected": true},
        }))
        .unwrap();
        let spec = ClusterPeerSpec {
            endpoints: vec!["203.0.113.7:30946".into()],
            trust_bundle: Some("two".into()),
            trust_updates: TrustUpdates::FromPeer,
            cluster_uid: Some("1-2".into()),
            ..ClusterPeerSpec::default()
        };
        let (said, import) =
            (ClusterPeer::new("west", spec), ImportFlags { import: vec!["lab".into()], ..ImportFlags::default() });
        let wanted = Wanted { peer: &said, word: Word::ApiServer, import: &import, check: &|_| Ok(()) };
        let whole = json!(wanted.over(Some(&existing)).unwrap());
        assert_eq!(
            whole["metadata"],
            json!({"name": "west", "namespace": "tributary-system", "labels": {"tier": "gpu"}, "annotations": {"team": "hpc"}})
        );
        assert_eq!(whole["status"], Value::Null);
        let spec = &whole["spec"];
        assert_eq!(spec["endpoints"], json!(["203.0.113.7:30946", "srv:west.example.org"]));
        assert_eq!([&spec["trustBundle"], &spec["trustUpdates"], &spec["clusterUID"]], ["two", "Manual", "1-2"]);
        assert_eq!((&spec["import"]["namespaces"], &spec["import"]["maxBrokers"]), (&json!(["hpc", "lab"]), &json!(4)));
        assert_eq!(spec["drain"], json!(true));
        let bare = ClusterPeer::new("west", ClusterPeerSpec::default());
        assert_eq!(json!(wanted.over(Some(&bare)).unwrap())["metadata"], json!({"name": "west"}));
    }

    /// The danger: while somebody is asked, another one writes a ClusterPeer of another cluster, and this becomes that.
    #[test]
    fn what_is_changed_is_what_was_judged() {
        let [said, meanwhile] = ["1-2", "3-4"].map(|uid| {
            let spec = ClusterPeerSpec { cluster_uid: Some(uid.into()), ..ClusterPeerSpec::default() };
            ClusterPeer::new("west", spec)
        });
        let import = ImportFlags::default();
        let check = |existing: Option<&ClusterPeer>| match existing.and_then(ClusterPeer::pinned_uid) {
            None | Some("1-2") => Ok(()),
            Some(_) => Err(Failure::new("it is another one")),
        };
        let wanted = Wanted { peer: &said, word: Word::Cluster, import: &import, check: &check };
        assert_eq!(wanted.change(None).unwrap(), None);
        assert!(wanted.change(Some(&said)).unwrap().is_some());
        assert!(wanted.change(Some(&meanwhile)).is_err() && wanted.over(Some(&meanwhile)).is_err());
    }

    /// What is merged into a ClusterPeer whose import names these namespaces.
    fn changed(line: &str, known: &[&str]) -> Value {
        let cli = Cli::try_parse_from(line.split(' ')).unwrap();
        let Command::Peer(Peer::Add(add)) = cli.command else { panic!("{line}") };
        let mut existing = importing(known);
        existing.metadata.resource_version = Some("7".into());
        stated(&existing, (&cluster_peer(&cli.target, &add).unwrap(), Word::Owner), &add.import)
    }

    fn importing(namespaces: &[&str]) -> ClusterPeer {
        let namespaces = namespaces.iter().map(|one| (*one).to_owned()).collect();
        let import = ImportPolicy { namespaces, ..ImportPolicy::default() };
        ClusterPeer::new("west", ClusterPeerSpec { import: Some(import), ..ClusterPeerSpec::default() })
    }

    /// The danger: a namespace is taken away by a limit, or by another namespace, and its bursts run without an import.
    #[test]
    fn a_namespace_is_taken_away_by_nothing_but_import_only() {
        for (options, known, namespaces) in [
            ("--import lab", &["hpc"][..], json!(["hpc", "lab"])),
            ("--import lab,hpc --import bio --max-brokers 4", &["hpc", "lab"], json!(["hpc", "lab", "bio"])),
            ("--import kube-guests", &["*"], json!(["*", "kube-guests"])),
            ("--import lab", &[], json!(["lab"])),
            ("--max-brokers 4", &["hpc"], Value::Null),
            ("--import-only lab", &["hpc", "*"], json!(["lab"])),
            ("--import-only=", &["hpc"], json!([])),
        ] {
            let changed = changed(&format!("agentctl peer add west {options}"), known);
            assert_eq!(changed["spec"]["import"]["namespaces"], namespaces, "{options}");
        }
    }

    #[test]
    fn limits_alone_are_for_a_peer_that_has_an_import() {
        let check = |options: &str, existing: Option<&ClusterPeer>| {
            let cli = Cli::try_parse_from(format!("agentctl peer add west {options}").split(' ')).unwrap();
            let Command::Peer(Peer::Add(add)) = cli.command else { panic!("{options}") };
            check_limits(existing, &add.import, "failed").map_err(|failure| failure.to_string())
        };
        let (without, with) = (ClusterPeer::new("west", ClusterPeerSpec::default()), importing(&["hpc"]));
        for existing in [None, Some(&without)] {
            let refused = check("--max-brokers 4", existing).unwrap_err();
            assert!(refused.contains("no namespace") && refused.contains("--import default"), "{refused}");
            assert_eq!(check("--max-brokers 4 --import lab", existing), Ok(()));
            assert_eq!(check("-l a=b", existing), Ok(()));
        }
        assert_eq!(check("--max-brokers 4", Some(&with)), Ok(()));
    }

    #[test]
    fn what_a_peer_may_is_told() {
        let told = [&[][..], &["hpc"], &["default", "hpc"], &["hpc", "*"]].map(|names| imports(&importing(names)));
        let wanted = ["nothing", "from namespace hpc", "from namespaces default, hpc", "from any namespace"];
        assert_eq!(told, wanted.map(|from| format!("{from} of west")));
        assert_eq!(imports(&ClusterPeer::new("west", ClusterPeerSpec::default())), "nothing of west");
    }

    #[test]
    fn who_suspended_a_drained_peer_does_not_use_it_again_by_one_resume() {
        let of = |suspend, drain| resumed("west", &ClusterPeerSpec { suspend, drain, ..ClusterPeerSpec::default() });
        let (patch, told) = of(true, true);
        assert_eq!(patch, json!({"suspend": false}));
        assert!(told.contains("still drained") && told.contains("`agentctl peer resume west`"), "{told}");
        crate::paste::check::pastes(&told);
        for (suspend, drain) in [(true, false), (false, true), (false, false)] {
            assert_eq!(of(suspend, drain).0, json!({"suspend": false, "drain": false}));
        }
    }

    #[test]
    fn what_is_lost_with_a_peer_is_named() {
        let burst = |phase: &str, run: Value| -> Burst {
            let spec = json!({"root": "lake", "slot": "lake-burst-0", "incarnation": "job-1"});
            let status = json!({"phase": phase, "peer": "west", "run": run});
            let metadata = json!({"name": "lake-burst-0", "namespace": "flux"});
            serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
        };
        type Cost = fn(&str, &[Burst], &[HostedBurst]) -> Option<String>;
        let of = |cost: Cost, bursts: &[Burst]| cost("west", bursts, &[]);
        for cost in [cost_of_drain as Cost, cost_of_suspend] {
            let told = of(cost, &[burst("Ready", Value::Null), burst("Released", Value::Null)]).unwrap();
            assert_eq!(told.matches("burst flux/lake-burst-0").count(), 1, "{told}");
            assert_eq!(of(cost, &[burst("Released", Value::Null)]), None);
        }
        let ended = [burst("Finished", json!({"namespace": "guests", "succeeded": true}))];
        assert!(of(cost_of_drain, &ended).unwrap().contains("Logs"));
        assert_eq!(of(cost_of_suspend, &ended), None, "its result outlasts that");
    }

    #[test]
    fn a_peer_may_place_nothing_unless_asked() {
        let peer = peer("agentctl peer add west").unwrap();
        assert_eq!((peer.spec.import, peer.metadata.labels), (None, None));
        assert_eq!(peer.metadata.namespace.as_deref(), Some("tributary-system"));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_a_hint() {
        let directory = tempfile::tempdir().unwrap();
        let key = directory.path().join("tls.key");
        std::fs::write(&key, "-----BEGIN PRIVATE KEY-----\n").unwrap();
        let lines = [
            "agentctl peer add west -l region".to_owned(),
            format!("agentctl peer add west --trust-bundle {}", key.display()),
            format!("agentctl peer add west --trust-bundle {}/missing", directory.path().display()),
        ];
        let shown = |line: &String| peer(line).unwrap_err().to_string();
        let texts: Vec<_> = lines.iter().map(shown).collect();
        let text = texts.join("\n\n---\n\n").replace(&directory.path().display().to_string(), "TMP");
        assert!(!text.contains("PRIVATE"), "{text}");
        insta::assert_snapshot!(text);
    }
}
