//! Show once, or again whenever something changed.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tributary::clock::{Clock, SystemClock};

use crate::cli::{List, Target};
use crate::connect::Agent;
use crate::error::Result;
use crate::output;

/// How often a watch asks again.
const INTERVAL: Duration = Duration::from_secs(1);

/// Reads `path`, lets `select` drop what the user did not ask for, and prints it; with `--watch` again and again.
pub(super) async fn show<T>(
    target: &Target,
    list: &List,
    path: &str,
    select: impl Fn(&mut T),
    table: impl Fn(&T, bool, Timestamp) -> String,
) -> Result<()>
where
    T: Serialize + DeserializeOwned,
{
    let clock = SystemClock::start();
    let mut shown = String::new();
    loop {
        let agent = Agent::find(target).await?;
        let mut document: T = agent.read(path).await?;
        select(&mut document);
        let text = output::document(list.output, &document, |value, wide| table(value, wide, clock.wall()))?;
        if text != shown {
            if list.watch {
                output::next_picture()?;
            }
            output::print(&text)?;
            shown = text;
        }
        if !list.watch {
            return Ok(());
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
