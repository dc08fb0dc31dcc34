//! Reads what is judged. Everything may fail: that something cannot be read is a finding.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use futures::{StreamExt, stream};
use http_body_util::BodyExt;
use jiff::Timestamp;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, PostParams};
use kube::client::Body;
use kube::core::PartialObjectMeta;
use kube::{Client, ResourceExt};
use serde::de::DeserializeOwned;
use tributary::admin::{self, FederationStatus};
use tributary::api::labels::upstream;
use tributary::api::minicluster::MiniCluster;
use tributary::api::peer::ClusterPeer;
use tributary::clock::{Clock, SystemClock};
use tributary::cluster::error::chain;
use tributary::cluster::leadership::lease_holders;

use super::rights::{self, Right, Scope};
use super::{Found, Seen};
use crate::cli::Target;
use crate::commands::{configuration, peering};
use crate::connect::{self, Agent, LEASE, POD_SELECTOR};
use crate::kubernetes;

/// Groups of our definitions.
const GROUPS: [&str; 2] = ["flux-framework.org", "tributary.dev"];
/// Questions about rights at a time.
const AT_A_TIME: usize = 16;

/// Everything that is judged; `Err`: why the API server does not answer.
pub(super) async fn fetch(client: &Client, target: &Target) -> Seen<Found> {
    let namespace = &target.agent_namespace;
    let now = SystemClock::start().wall();
    let (kubernetes, server_time) = version(client).await;
    // Who does not answer one question answers none, and would be waited for each time.
    let kubernetes = kubernetes?;
    let everything = ListParams::default();
    let (own, all) = (Some(namespace.as_str()), target.namespace.as_deref());
    let agents = async { list::<Pod>(client, own, &ListParams::default().labels(POD_SELECTOR)).await };
    let leader = async { connect::leader(client, namespace, now).await.map_err(|failure| failure.line()) };
    let card = async { peering::look_at_card(client, namespace).await.map_err(|failure| failure.line()) };
    let (definitions, operator, agents, leader, federation, card) = tokio::join!(
        definitions(client),
        operator(client, server_time.unwrap_or(now)),
        agents,
        leader,
        federation(target),
        card
    );
    let (services, slices, peers, unread_peers, namespaces, roots, bursts, hosted) = tokio::join!(
        list(client, own, &everything),
        list(client, own, &everything),
        list(client, own, &everything),
        unread_peers(client, namespace),
        namespaces(client),
        list::<MiniCluster>(client, all, &everything),
        list(client, all, &everything),
        list(client, all, &everything),
    );
    let pods = agents.as_ref().ok().map(Vec::as_slice).unwrap_or_default();
    let scope = scope(client, namespace, pods).await;
    let needed = scope.as_ref().map(|scope| rights::needed(scope, namespace)).unwrap_or_default();
    let rights = allowed(client, namespace, pods, needed).await;
    let found = Found {
        now,
        namespace: namespace.clone(),
        kubernetes,
        server_time,
        definitions,
        operator,
        agents,
        leader,
        federation,
        scope,
        rights,
        card,
        services,
        slices,
        peers,
        unread_peers,
        namespaces,
        roots,
        bursts,
        hosted,
    };
    Ok(found.of_these_agents())
}

/// The API server's version, and its clock: the header `Date` of the same answer (RFC 9110).
async fn version(client: &Client) -> (Seen<(u32, u32, String)>, Option<Timestamp>) {
    let request = hyper::Request::get("/version").body(Body::empty()).expect("the request is complete");
    let answer = match client.send(request).await {
        Ok(answer) => answer,
        Err(error) => return (Err(chain(&error)), None),
    };
    let date = answer.headers().get(hyper::header::DATE).and_then(|date| date.to_str().ok());
    let date = date.and_then(|date| jiff::fmt::rfc2822::parse(date).ok()).map(|date| date.timestamp());
    if !answer.status().is_success() {
        return (Err(format!("it answers {}", answer.status())), date);
    }
    let body = match answer.into_body().collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return (Err(chain(&error)), date),
    };
    let read = || -> Option<(u32, u32, String)> {
        let info: serde_json::Value = serde_json::from_slice(&body).ok()?;
        let number = |key: &str| info[key].as_str()?.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok();
        Some((number("major")?, number("minor")?, info["gitVersion"].as_str()?.to_owned()))
    };
    (read().ok_or_else(|| "its version cannot be read".to_owned()), date)
}

async fn definitions(client: &Client) -> Seen<Vec<CustomResourceDefinition>> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let all = api.list(&ListParams::default()).await.map_err(|error| chain(&error))?;
    Ok(all.items.into_iter().filter(|one| GROUPS.contains(&one.spec.group.as_str())).collect())
}

/// No agent starts beside it.
async fn operator(client: &Client, now: Timestamp) -> Seen<Option<String>> {
    let held = lease_holders(client, upstream::LEASE, now, Duration::ZERO).await.map_err(|error| chain(&error))?;
    Ok(held.first().map(|held| format!("{}/{}", held.namespace, held.holder)))
}

async fn federation(target: &Target) -> Seen<FederationStatus> {
    let read = async { Agent::find(target).await?.read(admin::STATUS).await };
    read.await.map_err(|failure| failure.line())
}

/// ClusterPeers in namespaces where no agent leads, or ever did.
async fn unread_peers(client: &Client, own: &str) -> Vec<(String, String)> {
    let (peers, leases): (Api<ClusterPeer>, Api<Lease>) = (Api::all(client.clone()), Api::all(client.clone()));
    let everything = ListParams::default();
    let of_agents = ListParams::default().fields(&format!("metadata.name={LEASE}"));
    let (peers, leases) = tokio::join!(peers.list_metadata(&everything), leases.list_metadata(&of_agents));
    let (Ok(peers), Ok(leases)) = (peers, leases) else { return Vec::new() };
    let led: BTreeSet<String> =
        leases.items.iter().filter_map(ResourceExt::namespace).chain([own.to_owned()]).collect();
    let key = |peer: &PartialObjectMeta<ClusterPeer>| Some((peer.namespace()?, peer.name_any()));
    peers.items.iter().filter_map(key).filter(|(namespace, _)| !led.contains(namespace)).collect()
}

async fn namespaces(client: &Client) -> Seen<BTreeSet<String>> {
    let api: Api<Namespace> = Api::all(client.clone());
    let all = api.list_metadata(&ListParams::default()).await.map_err(|error| chain(&error))?;
    Ok(all.items.iter().map(ResourceExt::name_any).collect())
}

/// Where agents work: of the configuration that their pods mount. Without pods of theirs nothing is known.
async fn scope(client: &Client, namespace: &str, agents: &[Pod]) -> Seen<Scope> {
    Ok(Scope::of(&configuration::of(client, namespace, agents).await?, namespace))
}

/// Which of these the agents' service account may do. Asking writes nothing: the API server stores no reviews.
async fn allowed(client: &Client, namespace: &str, agents: &[Pod], needed: Vec<Right>) -> Seen<Vec<(Right, bool)>> {
    let account = agents.iter().find_map(|pod| pod.spec.as_ref()?.service_account_name.clone());
    let Some(account) = account else { return Ok(Vec::new()) };
    let user = format!("system:serviceaccount:{namespace}:{account}");
    let groups = [
        "system:serviceaccounts".to_owned(),
        format!("system:serviceaccounts:{namespace}"),
        "system:authenticated".to_owned(),
    ];
    let ask = |right: Right| {
        let api: Api<SubjectAccessReview> = Api::all(client.clone());
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let attributes = ResourceAttributes {
            verb: text(&right.verb),
            group: text(&right.group),
            resource: text(&right.resource),
            subresource: text(&right.subresource),
            name: text(&right.name),
            namespace: text(&right.namespace),
            ..ResourceAttributes::default()
        };
        let spec = SubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            user: Some(user.clone()),
            groups: Some(groups.to_vec()),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        async move {
            let answer = api.create(&PostParams::default(), &review).await.map_err(|error| chain(&error))?;
            Ok((right, answer.status.is_some_and(|status| status.allowed)))
        }
    };
    let answers: Vec<Seen<(Right, bool)>> = stream::iter(needed).map(ask).buffered(AT_A_TIME).collect().await;
    answers.into_iter().collect()
}

async fn list<K>(client: &Client, namespace: Option<&str>, which: &ListParams) -> Seen<Vec<K>>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    kubernetes::scoped(client, namespace).list(which).await.map(|list| list.items).map_err(|error| chain(&error))
}
