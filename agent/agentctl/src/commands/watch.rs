//! Show once, or again whenever something changed.

use std::time::Duration;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use tributary::clock::{Clock, SystemClock};

use crate::cli::{List, Target};
use crate::connect::Agent;
use crate::document::{self, Document};
use crate::error::Result;
use crate::output;

/// How often a watch asks again.
const INTERVAL: Duration = Duration::from_secs(1);

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
    let mut shown: Option<String> = None;
    loop {
        let agent = Agent::find(target).await?;
        let selected = select(agent.read(path).await?);
        // That there is nothing is said once.
        let is_said = shown.as_deref() == Some("") && selected.nothing().is_some();
        if !is_said {
            let text = document::list(list.output, &selected, |value, wide| table(value, wide, clock.wall()))?;
            if shown.as_ref() != Some(&text) {
                if list.watch {
                    output::next_picture()?;
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
