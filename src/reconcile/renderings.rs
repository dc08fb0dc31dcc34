//! The last renderings. Most passes over a MiniCluster come soon after another one, because of its Job, its pods or its
//! bursts, and its spec is as it was: rendering would be most of their work.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tributary_api::minicluster::MiniCluster;
use tributary_clock::Mono;
use tributary_render::{Boot, Context, Rendered};

use super::decide::Rendering;

/// How many are kept, each of some 50 kB, and how long after they were last asked for: a MiniCluster that has come to rest
/// keeps none. If more MiniClusters change at once, the first ones keep their renderings. If the newest one took the place of
/// the oldest one, each would be gone before it is asked for again.
const MOST: usize = 256;
pub(super) const KEPT: Duration = Duration::from_secs(10);

/// Those that were asked for last, the last one at the end.
#[derive(Default)]
pub(super) struct Renderings(VecDeque<Kept>);

/// What a MiniCluster renders to.
pub(super) struct Kept {
    of: Arc<MiniCluster>,
    context: Context,
    asked: Mono,
    pub(super) rendering: Arc<Rendering>,
    /// The boot files that it runs with, if they are others, and what their spec renders to.
    followed: Option<(Arc<Boot>, Option<Arc<Rendered>>)>,
}

impl Kept {
    /// What the spec of these boot files renders to, if that is known.
    pub(super) fn followed(&self, frozen: &Arc<Boot>) -> Option<Option<Arc<Rendered>>> {
        let known = self.followed.as_ref().filter(|(known, _)| Arc::ptr_eq(known, frozen));
        known.map(|(_, followed)| followed.clone())
    }

    /// The spec of these boot files renders to this.
    pub(super) fn follows(&mut self, frozen: Arc<Boot>, followed: Option<Arc<Rendered>>) {
        self.followed = Some((frozen, followed));
    }
}

impl Renderings {
    /// What this MiniCluster renders to, if that is known.
    pub(super) fn of(&mut self, object: &MiniCluster, context: &Context, now: Mono) -> Option<&mut Kept> {
        let mut kept = self.take(object.metadata.uid.as_deref())?;
        if !is_same(&kept.of, object) || kept.context != *context {
            return None;
        }
        kept.asked = now;
        self.0.push_back(kept);
        self.0.back_mut()
    }

    /// Keeps a rendering.
    pub(super) fn keep(&mut self, of: Arc<MiniCluster>, context: Context, rendering: Arc<Rendering>, now: Mono) {
        self.take(of.metadata.uid.as_deref());
        self.sweep(now);
        if self.0.len() < MOST {
            self.0.push_back(Kept { of, context, asked: now, rendering, followed: None });
        }
    }

    /// Forgets those that nobody asked for in a while.
    pub(super) fn sweep(&mut self, now: Mono) {
        while self.0.front().is_some_and(|oldest| now.saturating_since(oldest.asked) >= KEPT) {
            self.0.pop_front();
        }
        if self.0.is_empty() {
            self.0 = VecDeque::new();
        }
    }

    /// There is no such object any more.
    pub(super) fn forget(&mut self, uid: &str) {
        self.take(Some(uid));
    }

    fn take(&mut self, uid: Option<&str>) -> Option<Kept> {
        let at = self.0.iter().rposition(|kept| kept.of.metadata.uid.as_deref() == uid)?;
        self.0.remove(at)
    }
}

/// Whether all is the same that rendering looks at: the spec, and whose it is.
fn is_same(one: &MiniCluster, other: &MiniCluster) -> bool {
    let (one_is, other_is) = (&one.metadata, &other.metadata);
    one_is.name == other_is.name
        && one_is.namespace == other_is.namespace
        && one_is.uid == other_is.uid
        && one_is.owner_references == other_is.owner_references
        && one_is.labels == other_is.labels
        && one_is.annotations == other_is.annotations
        && one.spec == other.spec
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
    use serde_json::json;
    use tributary_api::minicluster::{MiniClusterSpec, MiniClusterStatus};
    use tributary_render::{RENDER_REVISION, render};

    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono::from_start(Duration::from_secs(seconds))
    }

    fn lake(uid: &str) -> MiniCluster {
        let spec = MiniClusterSpec { containers: vec![Default::default()], ..MiniClusterSpec::default() };
        let mut object = MiniCluster::new("lake", spec);
        (object.metadata.uid, object.metadata.namespace) = (Some(uid.to_owned()), Some("waters".to_owned()));
        object
    }

    fn keep(all: &mut Renderings, object: &MiniCluster, now: Mono) -> Arc<Rendering> {
        let context = Context::default();
        let rendering = Arc::new(render(object, &context));
        all.keep(Arc::new(object.clone()), context, rendering.clone(), now);
        rendering
    }

    type Change = fn(&mut MiniCluster, &mut Context);

    /// The danger: pods of a spec that is not the present one.
    #[test]
    fn each_input_of_rendering_makes_another_one() {
        let news: [Change; 12] = [
            |object, _| object.spec.size = Some(7),
            |object, _| object.metadata.uid = Some("v".to_owned()),
            |object, _| object.metadata.name = Some("pond".to_owned()),
            |object, _| object.metadata.namespace = Some("wells".to_owned()),
            |object, _| object.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into()),
            |object, _| object.metadata.annotations = Some([("a".to_owned(), "b".to_owned())].into()),
            |object, _| {
                let owner = OwnerReference { kind: "HostedBurst".to_owned(), ..OwnerReference::default() };
                object.metadata.owner_references = Some(vec![owner]);
            },
            |_, context| context.interface = "eth7".to_owned(),
            |_, context| context.cluster_domain = "lakes.local".to_owned(),
            |_, context| context.lease = Duration::from_secs(7),
            |_, context| context.volumes.classes = vec!["hostpath".to_owned()],
            |_, context| {
                let slot = "pond".to_owned();
                let rank_map = render(&lake("u"), &Context::default()).unwrap().rank_map;
                let lead_service = "pond-lead".to_owned();
                context.hosted = Some(tributary_render::HostedSide { rank_map, slot, lead_service, lead_port: 8050 });
            },
        ];
        for (number, news) in news.into_iter().enumerate() {
            let (mut object, mut context, mut all) = (lake("u"), Context::default(), Renderings::default());
            let rendered = keep(&mut all, &object, at(0));
            // What changes all the time has no part in it.
            object.metadata.resource_version = Some("9".to_owned());
            object.status = Some(MiniClusterStatus::default());
            assert!(Arc::ptr_eq(&all.of(&object, &context, at(1)).unwrap().rendering, &rendered), "{number}");
            news(&mut object, &mut context);
            assert!(all.of(&object, &context, at(1)).is_none(), "{number}");
        }
    }

    /// This status has all fields. The test fails as soon as rendering looks at one of them.
    #[test]
    fn rendering_looks_at_no_status() {
        let told = json!({
            "size": 3, "selector": "s", "jobid": "j", "maximumSize": 5, "phase": "Running", "observedGeneration": 4,
            "conditions": [{"type": "Ready", "status": "True", "reason": "r", "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "ready": 2, "incarnation": "i", "began": "2026-01-01T00:00:00Z", "admittedSeconds": 7, "exitCode": 9,
            "rankMapDigest": "d", "rankMap": "m", "credentialDigest": "c", "credentialSecret": "lake-other",
            "lead": {"pod": "lake-0-x", "address": "10.0.0.1", "nodePort": 30_000}, "instanceRestarts": 3,
            "restartHandled": "1", "burstsReady": "1/2",
        });
        let mut object = lake("u");
        object.spec.flux.bursting.clusters = serde_json::from_value(json!([{"size": 1}])).unwrap();
        let before = render(&object, &Context::default()).unwrap();
        object.status = Some(serde_json::from_value(told).unwrap());
        object.metadata.resource_version = Some("7".to_owned());
        object.metadata.generation = Some(8);
        object.metadata.creation_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(render(&object, &Context::default()).unwrap(), before);
    }

    #[test]
    fn what_boot_files_render_to_is_known_of_these_alone() {
        let (mut all, object, context) = (Renderings::default(), lake("u"), Context::default());
        keep(&mut all, &object, at(0));
        let boot = |revision| {
            let boot = render(&lake("u"), &Context::default()).unwrap().boot;
            Arc::new(Boot { revision, ..boot })
        };
        let (frozen, other) = (boot(RENDER_REVISION), boot(RENDER_REVISION - 1));
        let rendered = Arc::new(render(&object, &context).unwrap());
        assert!(all.of(&object, &context, at(0)).unwrap().followed(&frozen).is_none());
        all.of(&object, &context, at(0)).unwrap().follows(frozen.clone(), Some(rendered.clone()));
        let kept = all.of(&object, &context, at(1)).unwrap();
        assert!(Arc::ptr_eq(&kept.followed(&frozen).unwrap().unwrap(), &rendered));
        assert!(kept.followed(&other).is_none());
        keep(&mut all, &object, at(1));
        assert!(all.of(&object, &context, at(1)).unwrap().followed(&frozen).is_none(), "it may be another spec");
    }

    #[test]
    fn only_those_are_kept_that_are_asked_for_and_there() {
        let (mut all, context) = (Renderings::default(), Context::default());
        let [busy, still, gone] = ["busy", "still", "gone"].map(lake);
        keep(&mut all, &busy, at(0));
        keep(&mut all, &still, at(1));
        keep(&mut all, &gone, at(1));
        all.forget("gone");
        assert!(all.of(&gone, &context, at(9)).is_none());
        assert!(all.of(&busy, &context, at(9)).is_some());
        all.sweep(at(11));
        assert!(all.of(&still, &context, at(11)).is_none());
        assert!(all.of(&busy, &context, at(11)).is_some());
        for number in 0..MOST {
            keep(&mut all, &lake(&number.to_string()), at(12));
        }
        assert!(all.of(&busy, &context, at(12)).is_some() && all.0.len() == MOST);
        let later = at(12) + KEPT;
        keep(&mut all, &still, later);
        assert!(all.of(&still, &context, later).is_some() && all.0.len() == 1);
    }
}
