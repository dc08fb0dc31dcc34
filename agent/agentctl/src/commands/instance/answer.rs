//! What the agent makes of it that somebody asks for another instance.

use std::time::Duration;

use kube::ResourceExt;
use kube::api::Api;
use tributary::api::labels::reason::CANNOT_RESTART;
use tributary::api::labels::{self, condition};
use tributary::api::minicluster::{MiniCluster, Phase};
use tributary::cluster::conditions::find;

use super::Verb;
use crate::error::{Failure, Result};

/// How long an agent may take to obey. It answers a change within milliseconds.
const WITHIN: Duration = Duration::from_secs(15);
/// How often is looked whether it has.
const POLL: Duration = Duration::from_millis(100);

/// What a MiniCluster tells.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Nothing,
    /// An agent has begun to obey. From then on nobody takes the instance before for the next one, as who waits for the
    /// condition `Ready` would.
    Obeyed,
    /// The next instance cannot be made, and why.
    Held(String),
}

impl Answer {
    /// What `object` tells whoever has written the annotation `asked`.
    fn of(object: &MiniCluster, asked: &str) -> Self {
        let status = object.status.clone().unwrap_or_default();
        if status.restart_handled.as_deref() == Some(asked) {
            return Self::Obeyed;
        }
        let said = |type_| find(&status.conditions, type_);
        let held = match status.phase {
            // Nothing runs any more, and the next instance may wait for a long time.
            Some(Phase::Restarting | Phase::Pending) => return Self::Obeyed,
            Some(Phase::Refused) => said(condition::READY),
            _ => {
                said(condition::RESTART_REQUIRED).filter(|said| said.status == "True" && said.reason == CANNOT_RESTART)
            }
        };
        held.map_or(Self::Nothing, |said| Self::Held(said.message.clone()))
    }

    /// What a look is worth after which another one may tell more: one that was held before may be told the same words again.
    fn is_final(&self, before: &Self) -> bool {
        *self == Self::Obeyed || *self != Self::Nothing && self != before
    }
}

/// Waits until an agent obeys who has written the annotation `asked`; `before`: as the MiniCluster was before that.
pub(super) async fn answered(objects: &Api<MiniCluster>, before: &MiniCluster, verb: Verb, asked: &str) -> Result<()> {
    // What starts will be new.
    if before.status.as_ref().is_none_or(|status| status.incarnation.is_none()) {
        return Ok(());
    }
    let (earlier, mut last) = (Answer::of(before, asked), Answer::Nothing);
    let looking = async {
        while !last.is_final(&earlier) {
            tokio::time::sleep(POLL).await;
            match objects.get_opt(&before.name_any()).await {
                Ok(Some(found)) => last = Answer::of(&found, asked),
                // It is deleted, and its instance goes with it.
                Ok(None) => last = Answer::Obeyed,
                Err(error) => tracing::debug!(%error, "failed to look at the MiniCluster"),
            }
        }
    };
    // Who is still told the same after this time is held for the same reason.
    let _ = tokio::time::timeout(WITHIN, looking).await;
    judged(last, before, verb)
}

fn judged(answer: Answer, object: &MiniCluster, verb: Verb) -> Result<()> {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let failed = Failure::new(format!("failed to {} MiniCluster {namespace}/{name}", verb.word()));
    match answer {
        Answer::Obeyed => Ok(()),
        Answer::Held(why) => Err(failed.because(why).hint(format!(
            "mend what that names: the agent tries again every 10 s. To ask for it no more: `kubectl annotate minicluster {name} \
             --namespace {namespace} {}-`",
            labels::RESTART
        ))),
        Answer::Nothing => Err(failed
            .because(format!("it is asked for now, and no agent has taken it up within {WITHIN:?}"))
            .hint(format!(
                "it is done as soon as one does. Whether one works is said by `agentctl check`, and what else is waited for by \
                 `agentctl why minicluster/{name} --namespace {namespace}`"
            ))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::paste::check::pastes;

    fn lake(status: Value) -> MiniCluster {
        let spec = json!({"size": 2, "containers": [{"image": "app"}]});
        serde_json::from_value(
            json!({"metadata": {"name": "lake", "namespace": "flux"}, "spec": spec, "status": status}),
        )
        .unwrap()
    }

    fn required(reason: &str, message: &str) -> Value {
        json!({"phase": "Running", "restartHandled": "before", "conditions": [{
            "type": "RestartRequired", "status": "True", "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
    }

    fn told(status: Value) -> Answer {
        Answer::of(&lake(status), "now")
    }

    /// The danger: `is started anew`, and the instance that runs is the old one.
    #[test]
    fn what_the_agent_holds_back_and_what_nobody_has_seen_is_no_success() {
        assert_eq!(told(json!({"phase": "Restarting"})), Answer::Obeyed);
        assert_eq!(told(json!({"phase": "Starting", "restartHandled": "now"})), Answer::Obeyed);
        assert_eq!(told(json!({"phase": "Running", "restartHandled": "before"})), Answer::Nothing);
        assert_eq!(told(required("FrozenPerIncarnation", "spec.size differs")), Answer::Nothing);
        let held = told(required(CANNOT_RESTART, "Secret keys is not there"));
        assert_eq!(held, Answer::Held("Secret keys is not there".into()));
        // The Job of one that has ended is gone, and the next one waits in the queue, or is refused.
        let without_job = |phase: &str, reason: &str| {
            told(json!({"phase": phase, "restartHandled": "before", "conditions": [{
                "type": "Ready", "status": "False", "reason": reason, "message": "the namespace is full",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}))
        };
        assert_eq!(without_job("Pending", "Queued"), Answer::Obeyed);
        assert_eq!(without_job("Refused", "CannotCreate"), Answer::Held("the namespace is full".into()));

        let judged = |answer, verb| judged(answer, &lake(json!({})), verb).map_err(|failure| failure.to_string());
        assert_eq!(judged(Answer::Obeyed, Verb::Restart), Ok(()));
        let held = judged(held, Verb::Restart).unwrap_err();
        let start = "error: failed to restart MiniCluster flux/lake\n  caused by: Secret keys is not there\n";
        assert!(held.starts_with(start) && held.contains("flux tributary.dev/restart-`"), "{held}");
        let unseen = judged(Answer::Nothing, Verb::Rekey).unwrap_err();
        assert!(unseen.contains("to rekey") && unseen.contains("no agent has taken it up within 15s"), "{unseen}");
        [held, unseen].iter().for_each(|text| pastes(text));
    }

    /// What was said before the question is no answer to it.
    #[test]
    fn a_refusal_of_before_is_looked_at_again() {
        let held = |why: &str| Answer::Held(why.into());
        for (now, before, is_final) in [
            (Answer::Nothing, Answer::Nothing, false),
            (held("no room"), Answer::Nothing, true),
            (held("no room"), held("no room"), false),
            (held("no Secret"), held("no room"), true),
            (Answer::Obeyed, held("no room"), true),
            (Answer::Obeyed, Answer::Obeyed, true),
        ] {
            assert_eq!(now.is_final(&before), is_final, "{now:?} after {before:?}");
        }
    }
}
