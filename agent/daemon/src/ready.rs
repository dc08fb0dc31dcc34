//! When an agent is ready: once the API server knows what it writes, and until it is asked to stop.

use kube::{Client, Resource};
use tokio_util::sync::CancellationToken;
use tributary::api::peer::ClusterPeer;
use tributary::clock::SystemRng;
use tributary::cluster::discovery::{DiscoveryError, await_fields, await_kinds};
use tributary::cluster::readiness::Readiness;
use tributary::reconcile::watches::Watches;

/// Waits for our kinds, and for all their fields. An agent of the release before that is still there goes on leading meanwhile.
pub(crate) async fn await_definitions(reader: &Client, readiness: &Readiness) -> Result<(), DiscoveryError> {
    let mut rng = SystemRng;
    await_kinds(reader, &Watches::kinds(), readiness, "kinds", &mut rng).await?;
    // MiniClusters, whose definition may be of the Flux Operator, are judged while the agent runs.
    await_fields(reader, &ClusterPeer::api_version(&()), readiness, "fields", &mut rng).await;
    Ok(())
}

/// Leads. As soon as `stop` is cancelled, and not only when the leader's scope has ended, this agent is not ready and its admin
/// API closes.
pub(crate) async fn say_at_stop<T>(
    leading: impl Future<Output = T>,
    stop: &CancellationToken,
    readiness: &Readiness,
    closing: &CancellationToken,
) -> T {
    let leading = async {
        let ended = leading.await;
        stop.cancel();
        ended
    };
    let saying = async {
        stop.cancelled().await;
        readiness.waits("stop", "the agent is stopping");
        closing.cancel();
    };
    tokio::join!(leading, saying).0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_stops_says_so_before_its_scope_has_ended() {
        let (stop, readiness, closing) = (CancellationToken::new(), Readiness::default(), CancellationToken::new());
        let leading = async {
            stop.cancelled().await;
            tokio::time::sleep(Duration::from_secs(9)).await;
            assert!(readiness.waiting().contains_key("stop") && closing.is_cancelled());
        };
        assert!(readiness.waiting().is_empty());
        let asked = async { stop.cancel() };
        tokio::join!(say_at_stop(leading, &stop, &readiness, &closing), asked);

        // It ends of itself when a task of the scope is gone.
        let (stop, closing) = (CancellationToken::new(), CancellationToken::new());
        assert_eq!(say_at_stop(async { 1 }, &stop, &readiness, &closing).await, 1);
        assert!(closing.is_cancelled());
    }
}
