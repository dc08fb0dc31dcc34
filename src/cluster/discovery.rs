//! Waiting until the API server answers and serves our kinds, and asking which cluster it is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, Resource};
use serde_json::Value;
use tokio::time::Instant;
use tributary_clock::{Backoff, Rng};

use super::error::{Cause, RequestError, chain};
use super::readiness::Readiness;

/// Between two looks. Short: a person who installs the CRDs waits for it.
const RETRY: Backoff = Backoff { first: Duration::from_millis(250), most: Duration::from_secs(5) };

/// How long after its kinds are served an API server may take to publish their schemas.
const PUBLISHED: Duration = Duration::from_secs(30);

/// A kind that must be served in a version.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ServedKind {
    /// `apiVersion`: group and version, or the version alone for the core group.
    pub api_version: String,
    /// The kind.
    pub kind: String,
}

impl ServedKind {
    /// The kind of a type.
    pub fn of<K: Resource<DynamicType = ()>>() -> Self {
        Self { api_version: K::api_version(&()).into_owned(), kind: K::kind(&()).into_owned() }
    }
}

/// Why waiting is no use.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The API server knows us and says no, or does not know us.
    #[error(
        "failed to ask for {api_version}: give this agent's account the right to GET /apis/* \
         (every authenticated account has it by the ClusterRole system:discovery), or renew its credentials"
    )]
    Denied {
        /// What was asked for.
        api_version: String,
        /// What the API server said.
        source: Cause,
    },
    /// An answer that time does not change.
    #[error("failed to ask for {api_version}")]
    Refused {
        /// What was asked for.
        api_version: String,
        /// What came back.
        source: Cause,
    },
}

/// Waits until every kind is served. A kind is served once its CustomResourceDefinition is established. Says in
/// `readiness`, as `who`, what it waits for.
///
/// "Not found", "too many requests", server errors and a silent network are waited for.
///
/// # Errors
/// [`DiscoveryError`].
pub async fn await_kinds(
    reader: &Client,
    kinds: &BTreeSet<ServedKind>,
    readiness: &Readiness,
    who: &'static str,
    rng: &mut impl Rng,
) -> Result<(), DiscoveryError> {
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for kind in kinds {
        missing.entry(&kind.api_version).or_default().insert(&kind.kind);
    }
    let mut looks = 0;
    loop {
        let mut why = Vec::new();
        for (api_version, wanted) in &mut missing {
            match served(reader, api_version).await {
                Ok(served) => wanted.retain(|kind| !served.contains(*kind)),
                Err(cause) => why.extend(worth_waiting(api_version, cause)?),
            }
            why.extend(wanted.iter().map(|kind| format!("{api_version} {kind} is not served")));
        }
        missing.retain(|_, wanted| !wanted.is_empty());
        if missing.is_empty() {
            readiness.done(who);
            return Ok(());
        }
        readiness.waits(who, why.join("; "));
        looks += 1;
        tokio::time::sleep(RETRY.delay(looks, rng.unit())).await;
    }
}

/// Waits until the API server keeps every field of the kinds of a group: with definitions of an older release it would refuse
/// what an agent writes. Says in `readiness`, as `who`, what it waits for. An API server that shows no schemas is not waited
/// for: the log says so.
pub async fn await_fields(
    reader: &Client,
    api_version: &str,
    readiness: &Readiness,
    who: &'static str,
    rng: &mut impl Rng,
) {
    let version = api_version.rsplit('/').next().unwrap_or_default();
    let lacks = |(kind, schema): &(String, Value)| {
        let named = tributary_api::named(&tributary_api::lacking(kind, version, schema))?;
        Some(format!("{api_version} {kind} is older than this agent and has no {named}"))
    };
    let (mut looks, mut absent_since) = (0, None);
    loop {
        let why = match schemas(reader, api_version).await {
            Ok(schemas) => {
                let why: Vec<_> = schemas.iter().filter_map(lacks).collect();
                if why.is_empty() {
                    return readiness.done(who);
                }
                format!(
                    "{}: apply the kinds of this release (chart tributary-crds; where it leaves them as they are: `agentctl crds | \
                     kubectl apply --server-side --force-conflicts -f -`)",
                    why.join("; ")
                )
            }
            Err(cause) if cause.is_transient() => chain(&cause),
            Err(cause)
                if cause.is_not_found() && absent_since.get_or_insert_with(Instant::now).elapsed() < PUBLISHED =>
            {
                format!("{api_version} has no schemas yet")
            }
            Err(cause) => {
                tracing::info!(
                    api_version,
                    error = chain(&cause),
                    "the API server shows no schemas, so nothing tells whether its kinds are as new as this agent: may this \
                     agent's account GET /openapi/v3/* (ClusterRole system:discovery)?"
                );
                return readiness.done(who);
            }
        };
        readiness.waits(who, why);
        looks += 1;
        tokio::time::sleep(RETRY.delay(looks, rng.unit())).await;
    }
}

/// Each kind of a version of a group with the schema that the API server publishes of it.
async fn schemas(reader: &Client, api_version: &str) -> Result<Vec<(String, Value)>, Cause> {
    let request = http::Request::get(format!("/openapi/v3/apis/{api_version}")).body(Vec::new());
    let document: Value = reader.request(request.map_err(kube::Error::HttpError)?).await?;
    let schemas = document.pointer("/components/schemas").and_then(Value::as_object).into_iter().flatten();
    let kind = |schema: &Value| schema.pointer("/x-kubernetes-group-version-kind/0/kind")?.as_str().map(str::to_owned);
    Ok(schemas.filter_map(|(_, schema)| Some((kind(schema)?, schema.clone()))).collect())
}

/// Whether a kind is served now: for what an agent can do without.
///
/// # Errors
/// What the API server says, but for "not found".
pub async fn is_served<K: Resource<DynamicType = ()>>(reader: &Client) -> Result<bool, Cause> {
    match served(reader, &K::api_version(&())).await {
        Ok(served) => Ok(served.contains(&*K::kind(&()))),
        Err(cause) if cause.is_not_found() => Ok(false),
        Err(cause) => Err(cause),
    }
}

async fn served(reader: &Client, api_version: &str) -> Result<BTreeSet<String>, Cause> {
    let list = match api_version.contains('/') {
        true => reader.list_api_group_resources(api_version).await?,
        false => reader.list_core_api_resources(api_version).await?,
    };
    Ok(list.resources.into_iter().map(|resource| resource.kind).collect())
}

/// What to say while waiting; nothing for a group that is not there yet, whose kinds are said to be missing anyway.
fn worth_waiting(api_version: &str, cause: Cause) -> Result<Option<String>, DiscoveryError> {
    let api_version = api_version.to_owned();
    if cause.is_denied() {
        Err(DiscoveryError::Denied { api_version, source: cause })
    } else if cause.is_not_found() {
        Ok(None)
    } else if cause.is_transient() {
        Ok(Some(chain(&cause)))
    } else {
        Err(DiscoveryError::Refused { api_version, source: cause })
    }
}

/// The UID of this cluster: that of its namespace `kube-system`. A cluster that was rebuilt or cloned has another.
///
/// # Errors
/// What the API server says; `NotFound` also if the namespace has no UID.
pub async fn cluster_uid(reader: &Client) -> Result<String, RequestError> {
    const NAME: &str = "kube-system";
    let failed = |cause| RequestError::new("read", format!("Namespace {NAME}"), cause);
    let namespace = Api::<Namespace>::all(reader.clone()).get(NAME).await.map_err(|error| failed(error.into()))?;
    namespace.metadata.uid.ok_or_else(|| {
        let message = "it has no UID".to_owned();
        failed(Cause::Refused { code: 404, reason: "NotFound".into(), message })
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use k8s_openapi::api::batch::v1::Job;
    use k8s_openapi::api::core::v1::Pod;
    use kube::client::Body;
    use serde_json::json;
    use tributary_clock::SeededRng;

    use super::*;
    use crate::error::chain;

    /// An API server that answers with one script entry after the other; the last one stays.
    fn client(script: Vec<(u16, Value)>) -> Client {
        let script = Arc::new(Mutex::new(script));
        let service = tower::service_fn(move |_: Request<Body>| {
            let mut script = script.lock().unwrap();
            let (code, body) = if script.len() > 1 { script.remove(0) } else { script[0].clone() };
            let body = Body::from(body.to_string().into_bytes());
            async move { Ok::<_, tower::BoxError>(Response::builder().status(code).body(body).unwrap()) }
        });
        Client::new(service, "n")
    }

    fn refusal(code: u16) -> (u16, Value) {
        (code, json!({"kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": ""}))
    }

    fn list(kinds: &[&str]) -> (u16, Value) {
        let resource =
            |kind: &&str| json!({"name": "x", "singularName": "x", "namespaced": true, "kind": kind, "verbs": []});
        let resources: Vec<_> = kinds.iter().map(resource).collect();
        (200, json!({"kind": "APIResourceList", "groupVersion": "batch/v1", "resources": resources}))
    }

    async fn wait(script: Vec<(u16, Value)>) -> Result<(), DiscoveryError> {
        let readiness = Readiness::default();
        let kinds = BTreeSet::from([ServedKind::of::<Job>()]);
        let result = await_kinds(&client(script), &kinds, &readiness, "kinds", &mut SeededRng::new(1)).await;
        if result.is_ok() {
            assert!(readiness.waiting().is_empty());
        }
        result
    }

    #[tokio::test(start_paused = true)]
    async fn what_time_heals_is_waited_for() {
        let script = vec![refusal(404), refusal(429), refusal(503), list(&[]), list(&["CronJob", "Job"])];
        wait(script).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_time_does_not_heal_is_said_with_a_hint() {
        for code in [401, 403] {
            let error = wait(vec![refusal(code)]).await.unwrap_err();
            assert!(chain(&error).contains("system:discovery") && chain(&error).ends_with(": no"), "{error}");
        }
        assert!(matches!(wait(vec![refusal(400)]).await, Err(DiscoveryError::Refused { .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn kinds_of_an_older_release_are_waited_for_by_name() {
        // As the API server publishes it: other schemas stand beside it, and some of its kinds are none of ours.
        let published = |without: &[&str]| {
            let ours = tributary_api::crds().into_iter().find(|one| one.spec.names.kind == "Burst").unwrap();
            let mut schema = serde_json::to_value(&ours.spec.versions[0].schema).unwrap()["openAPIV3Schema"].take();
            let status = schema.pointer_mut("/properties/status/properties").unwrap().as_object_mut().unwrap();
            without.iter().for_each(|field| drop(status.remove(*field).unwrap()));
            let group = |kind| json!([{"group": "tributary.dev", "version": "v1alpha1", "kind": kind}]);
            schema["x-kubernetes-group-version-kind"] = group("Burst");
            let list = json!({"type": "object", "x-kubernetes-group-version-kind": group("BurstList")});
            let schemas = json!({"Burst": schema, "BurstList": list, "meta.v1.ObjectMeta": {"type": "object"}});
            (200, json!({"components": {"schemas": schemas}}))
        };
        let (readiness, mut rng) = (Readiness::default(), SeededRng::new(1));
        let api_version = "tributary.dev/v1alpha1";
        let four = published(&["conditions", "message", "peer", "phase"]);
        let older = client(vec![refusal(503), refusal(404), four]);
        let waiting = await_fields(&older, api_version, &readiness, "fields", &mut rng);
        assert!(tokio::time::timeout(Duration::from_secs(60), waiting).await.is_err());
        let told = readiness.waiting()["fields"].clone();
        let named = "Burst is older than this agent and has no status.conditions, status.message, status.peer and 1 more: \
                     apply the kinds";
        assert!(told.contains(named) && told.contains("`agentctl crds | "), "{told}");

        // All fields are there; nobody may see the schemas; there are none.
        for answer in [published(&[]), refusal(403), refusal(404)] {
            let began = Instant::now();
            await_fields(&client(vec![answer.clone()]), api_version, &readiness, "fields", &mut rng).await;
            assert!(readiness.waiting().is_empty());
            assert_eq!(began.elapsed() >= PUBLISHED, answer.0 == 404, "{}", answer.0);
        }
        let busy = client(vec![refusal(503)]);
        let waiting = await_fields(&busy, api_version, &readiness, "fields", &mut rng);
        assert!(tokio::time::timeout(2 * PUBLISHED, waiting).await.is_err(), "it is waited for");
        assert!(readiness.waiting()["fields"].ends_with("no"), "{:?}", readiness.waiting());
    }

    #[tokio::test(start_paused = true)]
    async fn readiness_names_what_is_missing() {
        let (readiness, client) = (Readiness::default(), client(vec![list(&["Job"])]));
        let kinds = BTreeSet::from([ServedKind::of::<Job>(), ServedKind::of::<Pod>()]);
        let mut rng = SeededRng::new(1);
        let waiting = await_kinds(&client, &kinds, &readiness, "kinds", &mut rng);
        assert!(tokio::time::timeout(Duration::from_secs(60), waiting).await.is_err());
        assert_eq!(readiness.waiting()["kinds"], "v1 Pod is not served");
    }

    #[tokio::test]
    async fn what_an_agent_can_do_without_is_served_or_not() {
        let table =
            [(list(&["CronJob", "Job"]), Some(true)), (list(&["CronJob"]), Some(false)), (refusal(404), Some(false))];
        for (answer, expected) in table.into_iter().chain([(refusal(403), None), (refusal(503), None)]) {
            assert_eq!(is_served::<Job>(&client(vec![answer.clone()])).await.ok(), expected, "{answer:?}");
        }
    }

    #[tokio::test]
    async fn a_cluster_is_known_by_its_system_namespace() {
        let found = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system", "uid": "u-1"}});
        assert_eq!(cluster_uid(&client(vec![(200, found)])).await.unwrap(), "u-1");
        let error = cluster_uid(&client(vec![refusal(403)])).await.unwrap_err();
        assert_eq!(chain(&error), "failed to read Namespace kube-system: no");
    }
}
