//! Which objects were found to be as they should be: what has not changed since is not compared again.
//!
//! Most passes come because of something else. Comparing then is most of their work, and comes to the same.

use std::collections::BTreeMap;
use std::io::{self, Write};

use parking_lot::Mutex;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::{Appliable, OWN_GROUP};

/// How many objects are remembered twice over: those of before are forgotten when there are so many since.
const MOST: usize = 2048;

/// Groups of kinds whose `metadata.generation` counts every change of `spec`, and to whose `spec` the API server adds nothing
/// that has to stay.
pub(super) const WHOLE_GROUPS: [&str; 2] = [OWN_GROUP, "flux-framework.org"];

/// What was wanted and what was there, of each object by its UID.
#[derive(Default)]
pub(super) struct Compared(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    since: BTreeMap<String, Both>,
    before: BTreeMap<String, Both>,
}

/// What is wanted and what is there, as one digest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Both([u8; 32]);

impl Both {
    /// Of an object that is in the cluster; `None` if it does not say which version it is.
    pub(super) fn of<K: Appliable>(desired: &K, live: &K) -> Option<(String, Self)> {
        let meta = live.meta();
        let mut both = Hashing(Sha256::new());
        both.add(desired)?;
        match meta.generation.filter(|_| WHOLE_GROUPS.contains(&&*K::group(&()))) {
            // Its status changes all the time, and is nothing that is wanted.
            Some(generation) => both.add(&(
                generation,
                &meta.labels,
                &meta.annotations,
                &meta.owner_references,
                &meta.finalizers,
                &meta.deletion_timestamp,
            ))?,
            None => both.add(meta.resource_version.as_ref()?)?,
        }
        Some((meta.uid.clone()?, Self(both.0.finalize().into())))
    }
}

impl Compared {
    /// Whether this is what was compared last, and nothing was to be done.
    pub(super) fn knows(&self, uid: &str, both: Both) -> bool {
        let seen = self.0.lock();
        seen.since.get(uid).or_else(|| seen.before.get(uid)) == Some(&both)
    }

    /// Nothing is to be done.
    pub(super) fn remember(&self, uid: String, both: Both) {
        let mut seen = self.0.lock();
        if seen.since.len() >= MOST {
            seen.before = std::mem::take(&mut seen.since);
        }
        seen.since.insert(uid, both);
    }
}

/// Takes in JSON without keeping it.
struct Hashing(Sha256);

impl Hashing {
    fn add(&mut self, value: &impl Serialize) -> Option<()> {
        serde_json::to_writer(self, value).ok()
    }
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
    use serde_json::json;
    use tributary_api::burst::Burst;

    use super::*;

    type Change<K> = fn(&mut K, &mut K);

    /// Whether it is compared again after each of these changes of what is wanted and of what is there.
    fn again<K: Appliable + Clone>(object: &K, changes: &[Change<K>]) -> Vec<bool> {
        let compared = Compared::default();
        let (uid, both) = Both::of(object, object).unwrap();
        compared.remember(uid, both);
        let changed = |change: &Change<K>| {
            let (mut desired, mut live) = (object.clone(), object.clone());
            change(&mut desired, &mut live);
            Both::of(&desired, &live).is_none_or(|(uid, both)| !compared.knows(&uid, both))
        };
        changes.iter().map(changed).collect()
    }

    #[test]
    fn what_has_changed_in_any_way_that_counts_is_compared_again() {
        let service: Service = serde_json::from_value(json!({
            "metadata": {"name": "s", "uid": "u", "resourceVersion": "7", "generation": 1}, "spec": {"type": "NodePort"}}))
        .unwrap();
        let news: [Change<Service>; 5] = [
            |_, _| (),
            |desired, _| desired.spec.as_mut().unwrap().type_ = None,
            |_, live| live.metadata.resource_version = Some("8".to_owned()),
            |_, live| live.metadata.resource_version = None,
            |_, live| live.metadata.uid = Some("v".to_owned()),
        ];
        assert_eq!(again(&service, &news), [false, true, true, true, true]);

        let burst: Burst = serde_json::from_value(json!({"apiVersion": "tributary.dev/v1alpha1", "kind": "Burst",
            "metadata": {"name": "b", "uid": "u", "resourceVersion": "7", "generation": 1}, "spec": Burst::new("b", Default::default()).spec}))
        .unwrap();
        let news: [Change<Burst>; 9] = [
            |_, live| live.metadata.resource_version = Some("8".to_owned()),
            |_, live| live.status = Some(Default::default()),
            |desired, _| desired.spec.size += 1,
            |_, live| live.metadata.generation = Some(2),
            |_, live| live.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into()),
            |_, live| live.metadata.annotations = Some([("a".to_owned(), "b".to_owned())].into()),
            |_, live| live.metadata.owner_references = Some(vec![OwnerReference::default()]),
            |_, live| live.metadata.finalizers = Some(vec!["them/hold".to_owned()]),
            |_, live| live.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH)),
        ];
        assert_eq!(again(&burst, &news), [false, false, true, true, true, true, true, true, true]);
    }

    #[test]
    fn what_was_not_asked_for_in_a_long_while_is_forgotten() {
        let compared = Compared::default();
        (0..10 * MOST).for_each(|number| compared.remember(number.to_string(), Both([0; 32])));
        let knows = |number: usize| compared.knows(&number.to_string(), Both([0; 32]));
        assert!(knows(10 * MOST - 1) && !knows(0) && !compared.knows("19", Both([1; 32])));
        let seen = compared.0.lock();
        assert!(seen.since.len() + seen.before.len() <= 2 * MOST);
    }
}
