//! `log.filter` while the agent runs: a ConfigMap that changes, or a file and SIGHUP.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tributary::config::Config;

/// How often the file is read. The kubelet shows a changed ConfigMap after a minute or so.
const LOOK: Duration = Duration::from_secs(10);

/// Follows `log.filter` of the configuration file, until dropped: `change` is called with another filter. The rest of the
/// file counts at the next start.
///
/// # Errors
/// Signals cannot be heard.
pub(crate) async fn follow<E: Display>(
    file: PathBuf,
    mut current: String,
    change: impl Fn(&str) -> Result<(), E>,
) -> std::io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut complained = None;
    loop {
        tokio::select! {
            _ = hangup.recv() => complained = None,
            () = tokio::time::sleep(LOOK) => {}
        }
        let changed = match Config::load(Some(&file)) {
            Ok(config) if config.log.filter == current => None,
            Ok(config) => Some(config.log.filter),
            // It may be written at this moment.
            Err(error) => {
                complain(&mut complained, &error.to_string());
                None
            }
        };
        let Some(wanted) = changed else { continue };
        match change(&wanted) {
            Ok(()) => {
                tracing::info!(filter = wanted, before = current, "log.filter was changed");
                current = wanted;
                complained = None;
            }
            Err(error) => complain(&mut complained, &format!("log.filter = {wanted:?}: {error}")),
        }
    }
}

/// Each complaint once.
fn complain(last: &mut Option<String>, error: &str) {
    if last.as_deref() != Some(error) {
        tracing::warn!(error, "the changed configuration is not used");
        *last = Some(error.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_changed_filter_is_used_and_a_broken_file_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tributary.toml");
        let write = |filter: &str| {
            let text =
                format!("[cluster]\nname = \"east\"\n[federation]\nidentity = \"off\"\n[log]\nfilter = {filter}\n");
            std::fs::write(&file, text).unwrap();
        };
        write("\"info\"");
        let used = Arc::<Mutex<Vec<String>>>::default();
        let heard = used.clone();
        let change = move |filter: &str| match filter {
            "nonsense=nonsense" => Err("no such level"),
            filter => {
                heard.lock().unwrap().push(filter.to_owned());
                Ok(())
            }
        };
        let following = tokio::spawn(follow(file.clone(), "info".to_owned(), change));
        for filter in ["\"info\"", "\"debug\"", "\"unfinished", "\"nonsense=nonsense\"", "\"debug\"", "\"warn\""] {
            write(filter);
            tokio::time::sleep(LOOK * 2).await;
        }
        assert_eq!(*used.lock().unwrap(), ["debug", "warn"]);
        following.abort();
    }
}
