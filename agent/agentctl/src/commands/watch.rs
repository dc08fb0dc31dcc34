//! Show once, or again whenever something changed.

use std::time::Duration;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use tributary::clock::{Clock, SystemClock};

use crate::cli::{Format, List, Target};
use crate::connect::CachedAgent;
use crate::document::{self, Document};
use crate::error::Result;
use crate::output;

/// How often a watch asks again.
const INTERVAL: Duration = Duration::from_secs(1);

/// How the looks of a watch fare.
#[derive(Debug, Default)]
struct Looks {
    /// One has found something.
    answered: bool,
    /// The last one has not.
    failing: bool,
}

impl Looks {
    /// What a look found; `None`: the picture stays meanwhile. Only the first one may fail, since a leader that changes ends no
    /// watch; and one that is denied, since rights and credentials do not come back. Of failures in a row the first is told.
    fn take<T>(&mut self, found: Result<T>, tell: impl FnOnce(&str)) -> Result<Option<T>> {
        match found {
            Ok(found) => {
                *self = Self { answered: true, failing: false };
                Ok(Some(found))
            }
            Err(failure) if self.answered && !failure.is_denied() => {
                if !std::mem::replace(&mut self.failing, true) {
                    tell(&format!("{}; the picture is not of now, until the agent answers", failure.line()));
                }
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }
}

/// Reads `path`, makes a document of it that has only what the user asked for, and prints it; with `--watch` again and
/// again.
pub(super) async fn show<T: DeserializeOwned, D: Document>(
    target: &Target,
    list: &List,
    path: &str,
    select: impl Fn(T) -> D,
    table: impl Fn(&D, bool, Timestamp) -> String,
) -> Result<()> {
    let clock = SystemClock::start();
    let (mut looks, mut shown): (_, Option<String>) = (Looks::default(), None);
    let mut agent = CachedAgent::new(target);
    loop {
        let was_failing = looks.failing;
        let Some(found) = looks.take(agent.read(path).await, output::remark)? else {
            tokio::time::sleep(INTERVAL).await;
            continue;
        };
        if was_failing {
            // The remark stands below the old picture.
            shown = None;
        }
        let selected = select(found);
        // That there is nothing is said once.
        let is_said = shown.as_deref() == Some("") && selected.nothing().is_some();
        if !is_said {
            let text = document::list(target, list.output, &selected, |value, wide| table(value, wide, clock.wall()))?;
            if shown.as_ref() != Some(&text) {
                if list.watch {
                    output::next_picture()?;
                    if list.output == Format::Yaml {
                        output::print("---\n")?;
                    }
                }
                output::print(&text)?;
                shown = Some(text);
            }
        }
        if !list.watch {
            return Ok(());
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Failure;

    /// The danger: the leader changes, and whoever watches has to begin again.
    #[test]
    fn only_the_first_look_may_fail_and_later_failures_are_told_once() {
        let mut told = Vec::new();
        let mut looks = Looks::default();
        let mut take = |found: Option<u32>| {
            let found = found.ok_or_else(|| Failure::new("no answer"));
            looks.take(found, |text| told.push(text.to_owned()))
        };
        assert!(take(None).is_err());
        assert_eq!(take(Some(1)).unwrap(), Some(1));
        assert_eq!([take(None).unwrap(), take(None).unwrap()], [None, None]);
        assert_eq!(take(Some(2)).unwrap(), Some(2));
        assert_eq!(take(None).unwrap(), None);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with("no answer; "), "{told:?}");
    }

    /// The danger: a credential has run out, and a picture of yesterday stays for ever.
    #[test]
    fn who_may_not_look_any_more_is_told_and_the_watch_ends() {
        for (code, ends) in [(401, true), (403, true), (503, false)] {
            let mut looks = Looks { answered: true, failing: false };
            let status = kube::core::Status::failure("no", "Reason").with_code(code);
            let failure = Failure::new("no answer").because(kube::Error::Api(Box::new(status)));
            assert_eq!(looks.take(Err::<(), _>(failure), |_| {}).is_err(), ends, "{code}");
        }
        // Of a port-forward.
        let switch = kube::client::UpgradeConnectionError::ProtocolSwitch(hyper::StatusCode::FORBIDDEN);
        let failure = Failure::new("no answer").because(kube::Error::UpgradeConnection(switch));
        let mut looks = Looks { answered: true, failing: false };
        assert!(looks.take(Err::<(), _>(failure), |_| {}).is_err());
    }
}
