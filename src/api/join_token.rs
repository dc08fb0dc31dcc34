//! The Secret behind a join token: what may be done with the token, and what was. Of its secret part only a hash is kept,
//! so whoever reads the Secret cannot join with it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use serde_json::{Map, Value};

use super::labels::{TRIBUTARY, kubernetes::MANAGED_BY};
use super::peer::{ExportPolicy, ImportPolicy};

/// Type of these Secrets: by it they are watched, and no other Secret of the namespace.
pub const TYPE: &str = "tributary.dev/join-token";

const PREFIX: &str = "tributary-join-";
const HASH: &str = "secret-sha256";
const EXPIRES: &str = "expires";
const USES: &str = "uses";
const USED_BY: &str = "used-by";
const WRITTEN: &str = "written";
const IMPORT: &str = "import";
const EXPORT: &str = "export";
const LABELS: &str = "labels";

/// A join token, as its cluster keeps it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JoinTokenRecord {
    /// Its id: part of the Secret's name.
    pub id: String,
    /// SHA-256 (hex) of its secret.
    pub secret_hash: String,
    /// When it ends; a time that cannot be read has passed.
    pub expires: Timestamp,
    /// How many clusters may join with it.
    pub uses: u32,
    /// The clusters that have, each with a digest of what it showed: the same cluster may ask again.
    pub used_by: BTreeMap<String, String>,
    /// Those of them whose ClusterPeer was written: from then on it is its owner's.
    pub written: BTreeSet<String>,
    /// Fields of the [`ImportPolicy`] of a cluster that joins with it, those that whoever made the token named. `None`: none.
    pub import: Option<Value>,
    /// What it may see of us.
    pub export: Option<ExportPolicy>,
    /// Labels of its ClusterPeer.
    pub labels: BTreeMap<String, String>,
}

/// Name of the Secret of token `id`.
pub fn secret_name(id: &str) -> String {
    format!("{PREFIX}{id}")
}

impl JoinTokenRecord {
    /// What a cluster that joins with it may place here, if it may place `known` before: fields without a word stay, and its
    /// namespaces may be more, but no fewer.
    pub fn import(&self, known: Option<&ImportPolicy>) -> Option<ImportPolicy> {
        let Some(Value::Object(stated)) = &self.import else { return known.cloned() };
        let mut policy = match known.map(serde_json::to_value) {
            Some(Ok(Value::Object(fields))) => fields,
            _ => Map::new(),
        };
        policy.extend(stated.clone());
        let mut policy: ImportPolicy = serde_json::from_value(policy.into()).ok()?;
        let before = known.map(|known| known.namespaces.clone()).unwrap_or_default();
        policy.namespaces.retain(|namespace| !before.contains(namespace));
        policy.namespaces.splice(..0, before);
        Some(policy)
    }

    /// The Secret in `namespace`.
    pub fn secret(&self, namespace: &str) -> Secret {
        let mut secret = Secret {
            metadata: ObjectMeta {
                name: Some(secret_name(&self.id)),
                namespace: Some(namespace.to_owned()),
                labels: Some([(MANAGED_BY.to_owned(), TRIBUTARY.to_owned())].into()),
                ..ObjectMeta::default()
            },
            type_: Some(TYPE.to_owned()),
            ..Secret::default()
        };
        self.put(&mut secret);
        secret
    }

    /// Puts all of it into a Secret.
    pub fn put(&self, secret: &mut Secret) {
        let Self { id: _, secret_hash, expires, uses, used_by, written, import, export, labels } = self;
        let json = |value: serde_json::Result<String>| value.expect("plain data becomes JSON");
        let mut data: BTreeMap<String, String> = [
            (HASH, secret_hash.clone()),
            (EXPIRES, expires.to_string()),
            (USES, uses.to_string()),
            (USED_BY, json(serde_json::to_string(used_by))),
            (WRITTEN, json(serde_json::to_string(written))),
            (LABELS, json(serde_json::to_string(labels))),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into();
        data.extend(import.as_ref().map(|import| (IMPORT.to_owned(), json(serde_json::to_string(import)))));
        data.extend(export.as_ref().map(|export| (EXPORT.to_owned(), json(serde_json::to_string(export)))));
        secret.data = Some(data.into_iter().map(|(key, value)| (key, ByteString(value.into_bytes()))).collect());
    }

    /// What a Secret says. What cannot be read allows nothing: the token has ended, or lets its cluster place nothing.
    pub fn read(secret: &Secret) -> Self {
        let text = |key: &str| {
            let bytes = secret.data.as_ref().and_then(|data| data.get(key))?;
            std::str::from_utf8(&bytes.0).ok()
        };
        let json = |key: &str| text(key).and_then(|text| serde_json::from_str::<Value>(text).ok());
        let is_policy = |value: &Value| serde_json::from_value::<ImportPolicy>(value.clone()).is_ok();
        Self {
            id: secret.name_any().strip_prefix(PREFIX).unwrap_or_default().to_owned(),
            secret_hash: text(HASH).unwrap_or_default().to_owned(),
            expires: text(EXPIRES).and_then(|text| text.parse().ok()).unwrap_or(Timestamp::UNIX_EPOCH),
            uses: text(USES).and_then(|text| text.parse().ok()).unwrap_or(0),
            used_by: json(USED_BY).and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default(),
            written: json(WRITTEN).and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default(),
            import: json(IMPORT).filter(is_policy),
            export: json(EXPORT).and_then(|value| serde_json::from_value(value).ok()),
            labels: json(LABELS).and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_token_survives_its_secret() {
        let record = JoinTokenRecord {
            id: "abcd2345".into(),
            secret_hash: "00ff".into(),
            expires: "2025-06-01T12:15:00Z".parse().unwrap(),
            uses: 2,
            used_by: [("west".to_owned(), "d".to_owned())].into(),
            written: ["west".to_owned()].into(),
            import: Some(json!({"namespaces": ["hpc"], "maxBrokers": 4})),
            export: Some(ExportPolicy { capacity: false, status: true }),
            labels: [("region".to_owned(), "eu".to_owned())].into(),
        };
        let secret = record.secret("agents");
        assert_eq!(secret.metadata.name.as_deref(), Some("tributary-join-abcd2345"));
        assert_eq!(JoinTokenRecord::read(&secret), record);
    }

    /// The danger: a peer that joins again loses what its owner let it place before.
    #[test]
    fn who_joins_again_keeps_its_namespaces() {
        let known = ImportPolicy { namespaces: vec!["old".into(), "hpc".into()], ..ImportPolicy::default() };
        let import = Some(json!({"namespaces": ["hpc", "new"], "maxBrokers": 4}));
        let record = JoinTokenRecord { import, ..JoinTokenRecord::default() };
        let policy = record.import(Some(&known)).unwrap();
        assert_eq!((policy.namespaces.join(" "), policy.max_brokers), ("old hpc new".into(), Some(4)));
        assert_eq!(record.import(None).unwrap().namespaces, ["hpc", "new"]);
        assert_eq!(JoinTokenRecord::default().import(Some(&known)), Some(known));
    }

    #[test]
    fn what_cannot_be_read_allows_nothing() {
        let mut secret = JoinTokenRecord { uses: 1, import: Some(json!({})), ..Default::default() }.secret("a");
        let data = secret.data.get_or_insert_default();
        for key in [EXPIRES, USES, IMPORT] {
            data.insert(key.to_owned(), ByteString(b"{".to_vec()));
        }
        let read = JoinTokenRecord::read(&secret);
        assert_eq!((read.expires, read.uses, read.import), (Timestamp::UNIX_EPOCH, 0, None));
    }
}
