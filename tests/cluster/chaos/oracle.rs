//! What must never be, and what must not be left over, as functions of what is seen.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::ByteString;
use serde_json::Value;
use tributary::api::labels;
use tributary::render::Boot;

/// What users write by.
pub(super) const USER: &str = "chaos-user";
/// What owners of clusters write by.
pub(super) const OWNER: &str = "chaos-owner";

/// Secret keys that were seen in Secrets.
#[derive(Default)]
pub(crate) struct Keys {
    /// Whose it is, by each form of it that could be found in a text.
    forms: BTreeMap<String, String>,
}

impl Keys {
    /// Takes the keys out of a Secret. Whether there is one that was not known.
    pub(super) fn learn(&mut self, whose: &str, secret: &Value) -> bool {
        let before = self.forms.len();
        for (name, data) in secret["data"].as_object().into_iter().flatten() {
            let Ok(ByteString(bytes)) = serde_json::from_value(data.clone()) else { continue };
            for line in String::from_utf8_lossy(&bytes).lines() {
                let key = match line.trim().strip_prefix("secret-key = ") {
                    Some(key) => key.trim_matches('"'),
                    // The body of a key in PEM.
                    None if name.ends_with(".key") && line.len() >= 40 => line,
                    None => continue,
                };
                self.add(key, &format!("{name} of {whose}"));
            }
        }
        self.forms.len() > before
    }

    /// A key that shall be found as this text, and as base64 of a text that has it.
    pub(crate) fn add(&mut self, key: &str, whose: &str) {
        let forms = (0..3).map(|offset| within_base64(key.as_bytes(), offset)).chain([key.to_owned()]);
        self.forms.extend(forms.map(|form| (form, whose.to_owned())));
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.forms.len() / 4
    }

    /// Whose key is in a text.
    pub(crate) fn in_text(&self, text: &str) -> Option<&str> {
        self.forms.iter().find(|(form, _)| text.contains(form.as_str())).map(|(_, whose)| whose.as_str())
    }

    /// Whose key is in an object.
    pub(crate) fn in_object(&self, object: &Value) -> Option<&str> {
        match object {
            Value::String(text) => self.in_text(text),
            Value::Array(items) => items.iter().find_map(|item| self.in_object(item)),
            Value::Object(fields) => fields.iter().find_map(|(name, value)| {
                let packed = value.as_str().filter(|_| name == labels::BOOT).and_then(|text| Boot::decode(text).ok());
                let unpacked = packed.map(|boot| serde_json::to_value(boot).expect("it was JSON"));
                self.in_object(value).or_else(|| self.in_object(&unpacked?)).or_else(|| self.in_text(name))
            }),
            _ => None,
        }
    }
}

/// What base64 makes of bytes that begin at this offset from a multiple of three, with anything around them.
pub(crate) fn within_base64(bytes: &[u8], offset: usize) -> String {
    let padded = [&vec![0; offset], bytes].concat();
    let (first, last) = ((offset * 8).div_ceil(6), padded.len() * 8 / 6);
    let whole = serde_json::to_value(ByteString(padded)).expect("bytes have a JSON form");
    whole.as_str().unwrap_or_default()[first..last].to_owned()
}

/// A Job whose pods are brokers.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Brokers {
    /// Digest of their certificate: with another one, they belong to another instance.
    pub digest: String,
    /// The Job, named as the root, or as the slot.
    pub name: String,
    /// They reach their lead by the tunnel, whose end at the root says which cluster is let in.
    pub tunnel: bool,
}

/// A pod that has not ended, in one list of pods.
pub(super) struct Seen<'a> {
    pub uid: &'a str,
    pub name: &'a str,
    /// UID of its Job.
    pub job: &'a str,
    /// Its index in the Job.
    pub index: &'a str,
}

/// For how long a pod is known to have lived: from the answer in which it was seen first to the question whose answer had
/// it last.
struct Life {
    cluster: usize,
    name: String,
    job: String,
    index: String,
    since: Duration,
    until: Duration,
}

/// The pods that were seen.
#[derive(Default)]
pub(super) struct Lives {
    jobs: BTreeMap<String, Brokers>,
    pods: BTreeMap<String, Life>,
}

impl Lives {
    pub(super) fn job(&mut self, uid: &str, brokers: Brokers) {
        self.jobs.insert(uid.to_owned(), brokers);
    }

    /// The pods of a cluster in an answer that was asked for at `asked` and came at `answered`.
    pub(super) fn seen<'a>(
        &mut self,
        cluster: usize,
        asked: Duration,
        answered: Duration,
        pods: impl Iterator<Item = Seen<'a>>,
    ) {
        for Seen { uid, name, job, index } in pods {
            let new = || Life {
                cluster,
                name: name.to_owned(),
                job: job.to_owned(),
                index: index.to_owned(),
                since: answered,
                until: asked,
            };
            self.pods.entry(uid.to_owned()).or_insert_with(new).until = asked;
        }
    }

    /// Two pods that lived at one time, have one rank of one instance, and can both join it.
    pub(super) fn twice(&self) -> Option<String> {
        let mut ranks: BTreeMap<[&str; 3], Vec<(&Life, bool)>> = BTreeMap::new();
        for life in self.pods.values() {
            let Some(brokers) = self.jobs.get(&life.job) else { continue };
            let rank = [brokers.digest.as_str(), brokers.name.as_str(), life.index.as_str()];
            ranks.entry(rank).or_default().push((life, brokers.tunnel));
        }
        ranks.into_iter().find_map(|([_, job, index], lives)| {
            let pairs =
                lives.iter().enumerate().flat_map(|(n, one)| lives[n + 1..].iter().map(move |two| (*one, *two)));
            pairs.into_iter().find_map(|((one, tunnel), (two, _))| {
                let both = one.since.max(two.since)..=one.until.min(two.until);
                let fenced = tunnel && one.cluster != two.cluster;
                (!both.is_empty() && !fenced).then(|| {
                    let [one, two] = [one, two].map(|life| format!("{} of cluster {}", life.name, life.cluster));
                    format!("broker {index} of {job} ran twice, as {one} and as {two}, from {both:.1?}")
                })
            })
        })
    }
}

/// Who else than users and owners writes the spec of an object that is theirs.
pub(super) fn written_by_others(kind: &str, object: &Value) -> Option<String> {
    let managers = object["metadata"]["managedFields"].as_array();
    managers.into_iter().flatten().find_map(|one| {
        let spec = one["fieldsV1"]["f:spec"].as_object()?;
        let manager = one["manager"].as_str().unwrap_or_default();
        let own = [USER, OWNER].contains(&manager);
        // A peer that replaces its authority says so, if the ClusterPeer lets it.
        let trust = kind == "ClusterPeer"
            && manager == labels::manager::TRUST
            && spec.keys().all(|field| ["f:trustBundle", "."].contains(&field.as_str()));
        (!own && !trust).then(|| format!("{manager} writes {:?}", spec.keys().collect::<Vec<_>>()))
    })
}

/// What of a spec that was written is not there, or is otherwise: fields with a default are added to it.
pub(super) fn lost_of(written: &Value, there: &Value, at: &str) -> Option<String> {
    match (written, there) {
        (Value::Object(written), Value::Object(there)) => written.iter().find_map(|(field, value)| {
            lost_of(value, there.get(field).unwrap_or(&Value::Null), &format!("{at}.{field}"))
        }),
        (Value::Array(written), Value::Array(there)) if written.len() == there.len() => {
            let pairs = written.iter().zip(there).enumerate();
            pairs.into_iter().find_map(|(n, (written, there))| lost_of(written, there, &format!("{at}[{n}]")))
        }
        _ => (written != there).then(|| format!("{at} was written as {written} and is {there}")),
    }
}

/// What is left over of objects in the namespaces of users, and of ours elsewhere.
pub(super) fn is_left(users: &[&str], object: &Value) -> Option<String> {
    let metadata = &object["metadata"];
    let [kind, name, namespace] =
        [&object["kind"], &metadata["name"], &metadata["namespace"]].map(|text| text.as_str().unwrap_or_default());
    let label = |key: &str| metadata["labels"][key].as_str();
    let of_a_namespace = match (kind, name) {
        // Kubernetes makes them in each namespace, or its owner did.
        ("FluxSetup", _) | ("ServiceAccount", "default") | ("ConfigMap", "kube-root-ca.crt") | ("Event", _) => false,
        _ => users.contains(&namespace),
    };
    let is_record = label(labels::ROLE) == Some(labels::role::USAGE);
    let of_a_root = [labels::MINICLUSTER, labels::MINICLUSTER_UID, labels::BURST_UID, labels::SLOT, labels::ROOT_UID]
        .iter()
        .any(|key| label(key).is_some());
    (of_a_namespace || of_a_root && !is_record).then(|| format!("{kind} {namespace}/{name}"))
}

/// Whether a MiniCluster is made by an agent: for a burst of another cluster's, or for a FluxJob.
pub(super) fn is_made(object: &Value) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    owners.into_iter().flatten().any(|owner| owner["kind"] == "HostedBurst" || owner["kind"] == "FluxJob")
}
