//! `helm install` on two clusters, as the README says it, and everything an agent does with the rights it gets from that:
//! with fewer it fails, and with more this does.
//!
//! No kubelet is here, so that the containers of the chart's pods are processes of this binary ([`PodProcess`]); the
//! configuration, the environment and the token are the pod's own. No kube-proxy is here either: the second cluster is
//! told an address at which its agents can be reached on this machine, and all of its pods listen there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tributary::api::cluster_card::ClusterCard;
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::join_token::JoinTokenRecord;
use tributary::api::labels::{self, condition};
use tributary::api::names;
use tributary::api::peer::ClusterPeer;
use tributary::api::usage::DayOfUse;
use tributary::bursting::provider::materialize::{egress_name, slice_names};
use tributary_sandbox::{ADMIN, AuditLog, Cluster, Group, Options, Sandbox};
use tributary_tests::agent::AGENT_USER;
use tributary_tests::agentctl::agentctl;
use tributary_tests::chart::{self, PodProcess};
use tributary_tests::eventually::{eventually, gone};
use tributary_tests::federation::{SYSTEM, tail};
use tributary_tests::pages;
use tributary_tests::scenario::{Place, interactive};

use crate::conversion::{converted, older_kind};
use crate::shared::turn;

/// The command that installs everything into a cluster, its agents as they run here, and what they were told.
struct Installed<'a> {
    cluster: &'a Cluster,
    client: Client,
    agents: Vec<PodProcess>,
}

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_helm_installs_bursts_with_no_more_rights_than_it_needs() {
    let _turn = turn().await;
    let sandbox = Sandbox::start(Options::named(["east", "west"])).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let group = Group::start(Duration::from_secs(2), None).unwrap();
    let mut installed = BTreeMap::new();
    let commands = pages::commands("README.md", Some("## Install"), "console");
    let before_apply = commands.iter().position(|line| line.starts_with("kubectl")).unwrap();
    assert!(before_apply <= 3, "at most three commands lead to the first burst: {commands:#?}");
    for line in &commands {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[0] {
            "helm" => {
                let context = after(&words, "--kube-context");
                let one = install(&sandbox, context, &words[1..], (&group, directory.path())).await;
                installed.insert(context.to_owned(), one);
            }
            "agentctl" => {
                let said = agentctl(&sandbox.kubeconfig(), &words[1..]).await;
                said.unwrap_or_else(|error| panic!("{line}\n{error}\n{}", logs(&installed)));
            }
            "kubectl" => {
                if words.contains(&"apply") {
                    // A record of usage that is too old by now.
                    let old = DayOfUse::empty("2020-02-29".parse().unwrap()).to_config_map(SYSTEM, "west");
                    let maps = Api::<ConfigMap>::namespaced(installed["west"].client.clone(), SYSTEM);
                    maps.create(&PostParams::default(), &old).await.unwrap();
                    // Nothing but the lead broker: a NetworkPolicy says so.
                    confine(&installed["west"].client, json!({})).await;
                }
                chart::kubectl(&repository(), &sandbox.kubeconfig(), line).await.unwrap();
            }
            _ => panic!("nobody knows how to do this: {line}"),
        }
    }
    let [mut east, mut west] = ["east", "west"].map(|name| installed.remove(name).expect("it was installed"));
    let (root, provider) = (place(&east), place(&west));
    root.burst("first", "first-burst-0", BurstPhase::Ready).await;

    peers_are_led_to_the_leader(&mut west).await;
    // Through the next leader.
    let hosted = provider.hosted().get("first-burst-0").await.unwrap().uid();
    let slots = |slots: Value| json!({"flux": {"bursting": {"clusters": slots}}});
    root.change("first", slots(json!([{"size": 3, "maxSize": 3}]))).await;
    eventually("the burst has grown", async || {
        let status = provider.status("first-burst-0").await?;
        if status.ready == Some(3) { Ok(()) } else { Err(format!("{status:?}\n{}", tail(&west.agents[0].log_text()))) }
    })
    .await;
    assert_eq!(provider.hosted().get("first-burst-0").await.unwrap().uid(), hosted, "the burst was made anew");

    crate::refused_upgrades::no_burst_is_left_out_of_sight(&sandbox);
    whatever_else_an_agent_does(&sandbox, &root, &provider).await;

    for one in [&mut east, &mut west] {
        for agent in one.agents.drain(..) {
            agent.stop(&group).await.unwrap();
        }
        let left = endpoints(&one.client).await.unwrap();
        assert!(left.is_empty(), "an agent that stopped takes itself out: {left:?}");
    }
    crate::refused_upgrades::nobody_is_left_without_conversion(&sandbox, &west.client).await;
    crate::refused_upgrades::no_kind_leaves_its_release_unkept(&sandbox, &west.client).await;
    crate::refused_upgrades::two_releases_share_no_namespace(&sandbox, &west.client).await;
    let used = used(&[east.cluster.audit(), west.cluster.audit()]);
    superfluous(&east.client, &used).await;
    crate::release::is_upgraded_and_uninstalled(&east.client, &sandbox.kubeconfig()).await;
    crate::release::other_pages(&east.client, &west.client, &sandbox.kubeconfig()).await;
}

pub(crate) fn after<'a>(words: &[&'a str], option: &str) -> &'a str {
    let at = words.iter().position(|word| *word == option).unwrap_or_else(|| panic!("no {option} in {words:?}"));
    words[at + 1]
}

fn logs(installed: &BTreeMap<String, Installed<'_>>) -> String {
    let agents = installed.values().flat_map(|one| &one.agents);
    agents.map(|agent| format!("{}:\n{}\n", agent.name, tail(&agent.log_text()))).collect()
}

fn place(installed: &Installed<'_>) -> Place {
    Place { client: installed.client.clone(), namespace: "default".to_owned() }
}

/// helm, then what a kubelet would do.
async fn install<'a>(
    sandbox: &'a Sandbox,
    context: &str,
    arguments: &[&str],
    (group, directory): (&Group, &Path),
) -> Installed<'a> {
    let cluster = sandbox.cluster(context).unwrap();
    let client = cluster.client(ADMIN).await.unwrap();
    let free = || UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (federation, join) = (free(), free());
    let mut here = vec!["bursting.drainSeconds=1".to_owned()];
    if context == "east" {
        here.extend(crate::volumes::ALLOWED.map(str::to_owned));
    }
    if context == "west" {
        // Rights in one namespace and its own are enough to be a provider.
        here.push("watchNamespaces={default}".to_owned());
        // And still it may be the one that converts for all of them.
        here.push("webhook.clusterWide=true".to_owned());
        here.push(format!("federation.advertise={{{federation}}}"));
        here.push(format!("federation.join.advertise={{{join}}}"));
    }
    let here = here.iter().flat_map(|value| ["--set", value.as_str()]);
    let arguments: Vec<&str> = arguments.iter().copied().chain(here).collect();
    let output = chart::helm(&repository(), Some(&sandbox.kubeconfig()), &arguments).unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let notes = text(&output.stdout);
    assert!(notes.contains("link THIS_CONTEXT OTHER_CONTEXT"), "the notes say what comes next: {notes}");

    if context == "east" {
        v1alpha1_is_refused_while_nobody_converts(&client).await;
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), SYSTEM);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), SYSTEM);
    let running = eventually("the pods of the Deployment run", async || {
        let deployment = deployments.get("tributary").await.map_err(|error| error.to_string())?;
        let replicas = deployment.spec.and_then(|spec| spec.replicas);
        let list = pods.list(&ListParams::default().labels("app.kubernetes.io/name=tributary")).await;
        let items = list.map_err(|error| error.to_string())?.items;
        let with_address = items.iter().filter(|pod| pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some()));
        let with_address = i32::try_from(with_address.count()).unwrap();
        if Some(with_address) == replicas { Ok(items) } else { Err(format!("{with_address} of {replicas:?}")) }
    })
    .await;
    assert_eq!(running.len(), 2);
    let local = |name: &'static str, address: String| (name, address);
    let instead = [
        local("TRIBUTARY__FEDERATION__LISTEN", federation.to_string()),
        local("TRIBUTARY__FEDERATION__JOIN__LISTEN", join.to_string()),
        local("TRIBUTARY__ADMIN__LISTEN", "127.0.0.1:0".to_owned()),
        local("TRIBUTARY__HEALTH__LISTEN", "127.0.0.1:0".to_owned()),
        local("TRIBUTARY__WEBHOOK__LISTEN", "127.0.0.1:0".to_owned()),
    ];
    let mut agents = Vec::new();
    for pod in &running {
        agents.push(PodProcess::start(cluster, &client, pod, &instead, (group, directory)).await.unwrap());
    }
    let installed = Installed { cluster, client, agents };
    says_where_it_is_reached(&installed, context).await;
    // With every right in the cluster as with those of one namespace and this one.
    let bundle = converted(&installed.client).await;
    let secrets: Api<Secret> = Api::namespaced(installed.client.clone(), SYSTEM);
    let trusted = secrets.get("tributary-webhook").await.unwrap().data.unwrap();
    assert_eq!(trusted["ca.crt"].0, bundle, "the API server of {context} believes this agent");
    installed
}

/// No agent runs yet: an API server would take v1alpha1 for v1alpha2, and drop what it does not know.
async fn v1alpha1_is_refused_while_nobody_converts(client: &Client) {
    let spec = json!({"containers": [], "podLabels": {"a": "b"}});
    let object = DynamicObject::new("older", &older_kind()).data(json!({ "spec": spec }));
    let older: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &older_kind());
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let refusal = eventually("v1alpha1 is refused", async || {
        match older.create(&params, &object).await {
            // Until the kind is served, there is no such page.
            Err(kube::Error::Api(status)) if status.code != 404 => Ok(status.message.clone()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert!(refusal.contains("nobody converts v1alpha1 here"), "{refusal}");
}

/// Nobody said it to the agents of the first cluster: Kubernetes chose the node port.
async fn says_where_it_is_reached(installed: &Installed<'_>, context: &str) {
    let Installed { client, agents, .. } = installed;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), SYSTEM);
    let card = eventually(format!("the agent of {context} says where it is"), async || {
        let map = maps.get_opt("tributary-cluster").await.map_err(|error| error.to_string())?;
        let map = map.ok_or_else(|| agents.iter().map(|agent| tail(&agent.log_text())).collect::<String>())?;
        ClusterCard::read(&map).map_err(|error| error.to_string())
    })
    .await;
    if context == "west" {
        return;
    }
    let services: Api<Service> = Api::namespaced(client.clone(), SYSTEM);
    let ports = services.get("tributary-federation").await.unwrap().spec.unwrap().ports.unwrap();
    let port = |name: &str| ports.iter().find(|port| port.name.as_deref() == Some(name)).unwrap().node_port.unwrap();
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await.unwrap().items;
    let hosts: BTreeSet<String> = nodes
        .iter()
        .flat_map(|node| node.status.as_ref().unwrap().addresses.clone().unwrap())
        .filter(|address| address.type_ == "InternalIP")
        .map(|address| address.address)
        .collect();
    for (said, port) in [(card.endpoints, port("federation")), (card.join_endpoints, port("join"))] {
        assert!(!said.is_empty());
        for one in said {
            let host = one.strip_suffix(&format!(":{port}")).unwrap_or_else(|| panic!("{one} has another port"));
            assert!(hosts.contains(host), "{one} is no node: {hosts:?}");
        }
    }
}

/// Where the second cluster lets pods of the first one's bursts connect to.
async fn confine(west: &Client, egress: Value) {
    let peers: Api<ClusterPeer> = Api::namespaced(west.clone(), SYSTEM);
    let patch = Patch::Merge(json!({"spec": {"import": {"egress": egress}}}));
    peers.patch("east", &PatchParams::default(), &patch).await.unwrap();
}

/// Addresses that the Service of the federation leads to.
async fn endpoints(client: &Client) -> Result<BTreeSet<String>, String> {
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), SYSTEM);
    let of_service = format!("{}=tributary-federation", labels::kubernetes::SERVICE_NAME);
    let list = slices.list(&ListParams::default().labels(&of_service)).await.map_err(|error| error.to_string())?;
    Ok(list.items.into_iter().flat_map(|slice| slice.endpoints).flat_map(|endpoint| endpoint.addresses).collect())
}

/// The Service leads to the leader and nobody else, also when that one is gone, or somebody else writes there.
async fn peers_are_led_to_the_leader(installed: &mut Installed<'_>) {
    let Installed { client, agents, .. } = installed;
    let leases: Api<Lease> = Api::namespaced(client.clone(), SYSTEM);
    let only = |address: &str| BTreeSet::from([address.to_owned()]);
    let at = eventually("peers are led to the leader", async || {
        let lease = leases.get("tributary-agent").await.map_err(|error| error.to_string())?;
        let holder = lease.spec.and_then(|spec| spec.holder_identity).ok_or("nobody leads")?;
        let at = agents.iter().position(|agent| holder.starts_with(&agent.name)).ok_or("none of the pods leads")?;
        let now = endpoints(client).await?;
        if now == only(&agents[at].address) { Ok(at) } else { Err(format!("{now:?}, {holder} leads")) }
    })
    .await;
    let leader = agents.remove(at);

    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), SYSTEM);
    let pod = slices.get("tributary-federation-ipv4").await.unwrap().endpoints[0].target_ref.clone().unwrap();
    assert_eq!((pod.kind.as_deref(), pod.name.as_ref()), (Some("Pod"), Some(&leader.name)));
    let elsewhere = Patch::Merge(json!({"endpoints": [{"addresses": ["10.255.255.1"]}]}));
    slices.patch("tributary-federation-ipv4", &PatchParams::default(), &elsewhere).await.unwrap();
    eventually("peers are led to the leader again", async || {
        let now = endpoints(client).await?;
        if now == only(&leader.address) { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;

    leader.kill().unwrap();
    let [next] = &agents[..] else { panic!("two replicas") };
    eventually("peers are led to the next leader", async || {
        let now = endpoints(client).await?;
        if now == only(&next.address) { Ok(()) } else { Err(format!("{now:?}\n{}", tail(&next.log_text()))) }
    })
    .await;
}

/// The rest of what an agent is there for, so that each of its rights is needed once.
async fn whatever_else_an_agent_does(sandbox: &Sandbox, root: &Place, provider: &Place) {
    let kubeconfig = sandbox.kubeconfig();
    // Boot files are restored, and a Service is what it was.
    let edit = Patch::Merge(json!({"data": {tributary::render::HOSTLIST_KEY: "nobody"}}));
    let name = names::entrypoint("first");
    root.config_maps().patch(&name, &PatchParams::default(), &edit).await.unwrap();
    eventually("the boot files are restored", async || {
        let data = root.config_maps().get(&name).await.map_err(|error| error.to_string())?.data.unwrap_or_default();
        let now = data.get(tributary::render::HOSTLIST_KEY).cloned().unwrap_or_default();
        if now == "nobody" { Err(now) } else { Ok(()) }
    })
    .await;
    let edit = Patch::Merge(json!({"spec": {"publishNotReadyAddresses": false}}));
    root.services().patch(&names::lead("first"), &PatchParams::default(), &edit).await.unwrap();
    eventually("the lead's Service is what it was", async || {
        let spec = root.services().get(&names::lead("first")).await.map_err(|error| error.to_string())?.spec;
        let published = spec.and_then(|spec| spec.publish_not_ready_addresses) == Some(true);
        if published { Ok(()) } else { Err("it does not publish brokers that are not ready".to_owned()) }
    })
    .await;

    crate::queue::a_job_ends_and_goes(root).await;
    crate::volumes::volumes_are_made_bound_and_removed(root).await;
    crate::lost_node::a_lost_node_keeps_no_rank(root).await;
    crate::provisioning::nodes_are_asked_for_and_refused(root, provider).await;
    crate::managed::a_workload_is_made_and_given_back(root).await;
    root.delete("lake").await;

    // What leads elsewhere than to the root's lead broker is taken away.
    let [_, other_family] = slice_names("first-burst-0");
    let slices: Api<EndpointSlice> = Api::namespaced(provider.client.clone(), &provider.namespace);
    let [own, _] = slice_names("first-burst-0");
    let mut slice = slices.get(&own).await.unwrap();
    // As ours: what is another's stays, see `user_of_the_root.rs`.
    let ObjectMeta { labels, owner_references, .. } = slice.metadata;
    slice.metadata = ObjectMeta { name: Some(other_family.clone()), labels, owner_references, ..ObjectMeta::default() };
    slice.address_type = "IPv6".to_owned();
    slice.endpoints[0].addresses = vec!["2001:db8::1".to_owned()];
    slices.create(&PostParams::default(), &slice).await.unwrap();
    gone(&slices, &other_family).await;

    // What somebody else changes of the way to the lead, and of what pods may connect to, is what it was.
    let before = slices.get(&own).await.unwrap().endpoints;
    let edit = Patch::Merge(json!({"endpoints": []}));
    slices.patch(&own, &PatchParams::default(), &edit).await.unwrap();
    eventually("the slice is what it was", async || {
        let now = slices.get(&own).await.map_err(|error| error.to_string())?.endpoints;
        if now == before { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
    let policies: Api<NetworkPolicy> = Api::namespaced(provider.client.clone(), &provider.namespace);
    let egress = egress_name("first-burst-0");
    let before = policies.get(&egress).await.unwrap().spec;
    let edit = Patch::Merge(json!({"spec": {"egress": []}}));
    policies.patch(&egress, &PatchParams::default(), &edit).await.unwrap();
    eventually("the policy is what it was", async || {
        let now = policies.get(&egress).await.map_err(|error| error.to_string())?.spec;
        if now == before { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;

    // Pods may connect to whatever they like again.
    confine(&provider.client, Value::Null).await;
    gone(&policies, &egress_name("first-burst-0")).await;

    // A token that has ended is removed; the authority is replaced, and the peer takes the new one.
    let record = JoinTokenRecord { id: "late2345".into(), ..JoinTokenRecord::default() };
    let secrets: Api<Secret> = Api::namespaced(provider.client.clone(), SYSTEM);
    let token = record.secret(SYSTEM);
    secrets.create(&PostParams::default(), &token).await.unwrap();
    gone(&secrets, &token.name_any()).await;
    let peers: Api<ClusterPeer> = Api::namespaced(root.client.clone(), SYSTEM);
    let before = peers.get("west").await.unwrap().spec.trust_bundle;
    agentctl(&kubeconfig, &["--context", "west", "identity", "rotate", "--yes"]).await.unwrap();
    eventually("the peer knows the new authority", async || {
        let now = peers.get("west").await.map_err(|error| error.to_string())?.spec.trust_bundle;
        if now == before { Err("the old one".to_owned()) } else { Ok(()) }
    })
    .await;

    // A slot that is written no more: its Burst goes, and what it stands for.
    root.change("first", json!({"flux": {"bursting": {"clusters": []}}})).await;
    provider.empty("first-burst-0").await;
    eventually("the Burst is gone", async || {
        let left = root.bursts().list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
        if left.is_empty() { Ok(()) } else { Err(format!("{:?}", left[0].status)) }
    })
    .await;
    root.delete("first").await;

    // Joining with a token, instead of link.
    for (context, peer) in [("east", "west"), ("west", "east")] {
        agentctl(&kubeconfig, &["--context", context, "peer", "remove", peer]).await.unwrap();
    }
    let token = agentctl(&kubeconfig, &["--context", "west", "token", "create"]).await.unwrap();
    let token = token.lines().find(|line| line.starts_with("tributary-1.")).unwrap().to_owned();
    agentctl(&kubeconfig, &["--context", "east", "join", &token, "--wait", "60s"]).await.unwrap();

    a_mini_cluster_with_everything_beside_it(root).await;
}

/// A pod and Services beside the brokers, that come and go, under names that somebody else has at first.
async fn a_mini_cluster_with_everything_beside_it(place: &Place) {
    let spec = |headless: &str, image: &str| {
        let mut spec = interactive(1);
        spec["network"] = json!({"headlessName": headless});
        spec["containers"] = json!([
            {"image": "rockylinux:9", "runFlux": true},
            {"name": "nginx", "image": "nginx", "command": "nginx", "ports": [80]},
        ]);
        spec["services"] = json!([{"name": "db", "image": image}]);
        spec
    };
    let service = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "nginx", "namespace": place.namespace}, "spec": {"ports": [{"port": 1}]}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "beside-services", "namespace": place.namespace},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for object in [&service, &pod] {
        chart::apply(&place.client, object).await.unwrap();
    }
    place.create("beside", spec("bog", "db:1")).await;
    place.condition("beside", condition::READY, "False", "NameTaken").await;
    place.pods().delete("beside-services", &DeleteParams::default()).await.unwrap();
    place.services().delete("nginx", &DeleteParams::default()).await.unwrap();
    eventually("the pod of somebody else is gone", async || {
        let pod = place.pods().get_opt("beside-services").await.map_err(|error| error.to_string())?;
        let foreign = pod.is_some_and(|pod| pod.metadata.owner_references.is_none());
        if foreign { Err("it is there".to_owned()) } else { Ok(()) }
    })
    .await;
    // Whatever changes makes a pass.
    place.change("beside", json!({"deadlineSeconds": 9000})).await;
    place.running("beside").await;
    place.change("beside", spec("mire", "db:2")).await;
    place.condition("beside", condition::RESTART_REQUIRED, "True", "FrozenPerIncarnation").await;
    let patch = Patch::Merge(json!({"metadata": {"annotations": {labels::RESTART: "1"}}}));
    place.mini_clusters().patch("beside", &PatchParams::default(), &patch).await.unwrap();
    eventually("the old Service is swept, and the pod is a new one", async || {
        let old = place.services().get_opt("bog").await.map_err(|error| error.to_string())?;
        let pod = place.pods().get_opt("beside-services").await.map_err(|error| error.to_string())?;
        let image = pod.and_then(|pod| pod.spec?.containers.into_iter().next()?.image);
        if old.is_none() && image.as_deref() == Some("db:2") { Ok(()) } else { Err(format!("{old:?} {image:?}")) }
    })
    .await;
    place.running("beside").await;
    place.delete("beside").await;
}

/// Group, resource with its subresource, verb, and whether it was in the agent's own namespace.
type Right = (String, String, String, bool);

/// What agents asked for. A request that was refused for want of a right fails.
fn used(audits: &[AuditLog]) -> BTreeSet<Right> {
    let mut used = BTreeSet::new();
    for event in audits.iter().flat_map(|audit| audit.all().unwrap()).filter(|event| event.user == AGENT_USER) {
        assert!(event.code != 403, "a rule is missing for this: {} {} ({})", event.verb, event.uri, event.user_agent);
        if event.resource.is_empty() || !event.counts() {
            continue;
        }
        let resource = match event.subresource.is_empty() {
            true => event.resource.clone(),
            false => format!("{}/{}", event.resource, event.subresource),
        };
        let own = event.namespace == SYSTEM;
        let mut right = |verb: &str| used.insert((event.group.clone(), resource.clone(), verb.to_owned(), own));
        right(&event.verb);
        // An apply that makes an object needs the right to create it.
        if event.verb == "patch" && event.code == 201 {
            right("create");
        }
    }
    used
}

/// Rights that no request shows.
const UNSEEN: [(&str, &str, &str); 7] = [
    // What OpenShift asks for.
    ("discovery.k8s.io", "endpointslices/restricted", "create"),
    // While something waits for a ResourceQuota. What a quota refuses looks like a right that is missing.
    ("", "resourcequotas", "watch"),
    // When the answer to the request that made it was lost.
    ("tributary.dev", "hostedbursts", "get"),
    // When somebody else has made, or changes, one at the same moment.
    ("tributary.dev", "bursts", "get"),
    // When a FluxJob that was sent to another cluster is called back.
    ("tributary.dev", "bursts", "patch"),
    // Some API servers ask for it when an object is made whose owner waits for its end; see `suite/charts.rs`.
    ("flux-framework.org", "miniclusters/finalizers", "update"),
    // What happens again after five minutes is counted on in the Event that is there.
    ("events.k8s.io", "events", "patch"),
];

/// Fails if the chart gives a right that nobody used.
async fn superfluous(client: &Client, used: &BTreeSet<Right>) {
    let cluster = Api::<ClusterRole>::all(client.clone()).get("tributary").await.unwrap().rules.unwrap();
    let own = Api::<Role>::namespaced(client.clone(), SYSTEM).get("tributary").await.unwrap().rules.unwrap();
    let unseen: BTreeSet<_> = UNSEEN.into_iter().collect();
    let mut unused = Vec::new();
    let mut given_everywhere = BTreeSet::new();
    for (rules, in_own) in [(&cluster, false), (&own, true)] {
        for (group, resource, verb) in rights(rules) {
            let right = |own| (group.to_owned(), resource.to_owned(), verb.to_owned(), own);
            // What is given everywhere has to be needed elsewhere than in the agent's own namespace, too.
            let needed = used.contains(&right(in_own)) || unseen.contains(&(group, resource, verb));
            if !needed {
                unused.push(format!("{verb} {resource}.{group}{}", if in_own { " in its own namespace" } else { "" }));
            }
            if in_own && given_everywhere.contains(&(group, resource, verb)) {
                unused.push(format!("{verb} {resource}.{group} twice"));
            }
            if !in_own {
                given_everywhere.insert((group, resource, verb));
            }
        }
    }
    assert!(unused.is_empty(), "nobody needs these rules of the chart: {unused:#?}");
}

fn rights(rules: &[PolicyRule]) -> impl Iterator<Item = (&str, &str, &str)> {
    rules.iter().flat_map(|rule| {
        let groups = rule.api_groups.iter().flatten();
        groups.flat_map(move |group| {
            let resources = rule.resources.iter().flatten();
            resources.flat_map(move |resource| {
                rule.verbs.iter().map(move |verb| (group.as_str(), resource.as_str(), verb.as_str()))
            })
        })
    })
}
