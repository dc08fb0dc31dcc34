//! What is asked on a connection, and whether its client takes too long.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// Somebody waits for an answer, until all of it is sent.
pub(crate) struct Asked(Arc<watch::Sender<usize>>);

impl Asked {
    /// Says so to the watcher of the connection.
    pub(crate) fn tell(watched: Arc<watch::Sender<usize>>) -> Self {
        watched.send_modify(|asked| *asked += 1);
        Self(watched)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.send_modify(|asked| *asked -= 1);
    }
}

/// Returns once nobody has asked within `first`, or a question was not answered, or its answer not taken, within `whole`.
pub(crate) async fn late(mut asked: watch::Receiver<usize>, first: Duration, whole: Duration) {
    if tokio::time::timeout(first, asked.changed()).await.is_err() {
        return;
    }
    loop {
        let is_asked = *asked.borrow_and_update() > 0;
        let changed = match is_asked {
            true => match tokio::time::timeout(whole, asked.changed()).await {
                Ok(changed) => changed,
                Err(_) => return,
            },
            false => asked.changed().await,
        };
        if changed.is_err() {
            // The connection is over.
            return;
        }
    }
}
