//! What becomes of a MiniCluster that is there already. Pure.

use kube::ResourceExt;
use tributary::api::labels::{RESTART, condition};
use tributary::api::minicluster::{MiniCluster, Phase, UpdatePolicy};
use tributary::cluster::conditions::is_true;
use tributary::render::{Boot, Context, Rendered, differences, running};

use super::evaluate::Existing;

/// What becomes of a MiniCluster: made, or what of it is changed.
pub(super) fn change(object: &MiniCluster, existing: &Existing, rendered: &Rendered, context: &Context) -> String {
    if existing.mini_cluster.is_none() {
        return if object.spec.suspend { "is made, and held back (suspend)" } else { "is made" }.to_owned();
    }
    if has_ended(existing) && !runs_again(object, existing, rendered, context) {
        return "has ended, and runs again only with the annotation tributary.dev/restart (agentctl restart)"
            .to_owned();
    }
    let frozen = match existing.job.as_ref().map(|job| Boot::frozen(job.annotations())) {
        Some(Ok(Some(frozen))) => frozen,
        Some(Err(_)) => return "runs with boot files that this version cannot read".to_owned(),
        Some(Ok(None)) | None => return "is there without an instance of ours; the next one is as follows".to_owned(),
    };
    let differs = changed(&frozen, object, rendered, context);
    match (differs.is_empty(), object.spec.updates) {
        (true, _) if object.spec.suspend => "is held back (suspend); nothing else of its instance changes".to_owned(),
        (true, _) => "runs; nothing of its instance changes".to_owned(),
        (false, UpdatePolicy::Recreate) => format!("the instance is started anew: {} differ", differs.join(", ")),
        (false, _) => format!(
            "runs on as it is: {} take effect with the next instance (annotation tributary.dev/restart), which is as follows",
            differs.join(", ")
        ),
    }
}

/// Whether it ended before.
pub(super) fn has_ended(existing: &Existing) -> bool {
    let status = existing.mini_cluster.as_ref().and_then(|there| there.status.as_ref());
    status.is_some_and(|status| matches!(status.phase, Some(Phase::Succeeded | Phase::Failed)))
}

/// Whether the agent would run it once more, since its user asks for that.
pub(super) fn runs_again(object: &MiniCluster, existing: &Existing, rendered: &Rendered, context: &Context) -> bool {
    let status = existing.mini_cluster.as_ref().and_then(|there| there.status.clone()).unwrap_or_default();
    let asked = object.annotations().get(RESTART).is_some_and(|asked| status.restart_handled.as_ref() != Some(asked));
    let frozen = existing.job.as_ref().and_then(|job| Boot::frozen(job.annotations()).ok().flatten());
    asked
        || match frozen {
            Some(frozen) => {
                object.spec.updates == UpdatePolicy::Recreate && !changed(&frozen, object, rendered, context).is_empty()
            }
            None => existing.job.is_none() && is_true(&status.conditions, condition::RESTART_REQUIRED),
        }
}

/// What only another instance would have.
fn changed(frozen: &Boot, object: &MiniCluster, rendered: &Rendered, context: &Context) -> Vec<String> {
    let running = running(frozen, object, Some(&rendered.boot), context);
    differences(frozen, running.as_ref().map(|running| &running.boot), &rendered.boot)
}
