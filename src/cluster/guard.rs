//! The outermost layer of both clients: what may pass, and for how long.

use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use kube::client::{Body, DynBody};
use tower::{BoxError, Layer, Service, ServiceExt};
use tributary_clock::SharedClock;

use super::fence::{Fence, FenceError};
use super::requests::{RequestMetrics, Verb};

/// What a client lets through.
#[derive(Clone)]
pub(super) enum Pass {
    /// `GET` and nothing else.
    Reads,
    /// `GET` always, everything else while this agent leads.
    WritesWhileLeading(Fence),
}

/// Adds a [`Guard`]. It must be the outermost layer: a retry outside of it would not be seen by it, and a retry inside
/// of it would outlive the check.
#[derive(Clone)]
pub(super) struct GuardLayer {
    pub(super) pass: Pass,
    /// A read: until the head of the answer. A write: until the whole answer is here.
    pub(super) limit: Duration,
    pub(super) requests: RequestMetrics,
    pub(super) clock: SharedClock,
}

type Answer = Result<Response<Box<DynBody>>, BoxError>;

impl GuardLayer {
    fn counted(&self, verb: Verb, work: impl Future<Output = Answer> + Send + 'static) -> BoxFuture<'static, Answer> {
        let (requests, clock) = (self.requests.clone(), self.clock.clone());
        Box::pin(async move {
            let sent = clock.mono();
            let answer = work.await;
            let status = answer.as_ref().ok().map(Response::status);
            requests.answered(verb, status, Some(clock.mono().saturating_since(sent)));
            answer
        })
    }
}

impl<S> Layer<S> for GuardLayer {
    type Service = Guard<S>;

    fn layer(&self, inner: S) -> Guard<S> {
        Guard { inner, layer: self.clone() }
    }
}

/// Refuses what its [`Pass`] does not allow, and gives up what takes longer than the limit.
pub(super) struct Guard<S> {
    inner: S,
    layer: GuardLayer,
}

impl<S> Service<Request<Body>> for Guard<S>
where
    S: Service<Request<Body>, Response = Response<Box<DynBody>>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let limit = self.layer.limit;
        let verb = Verb::of(&request);
        if request.method() == Method::GET {
            let answer = self.inner.call(request);
            return self.layer.counted(verb, async move { within(limit, answer).await });
        }
        let Pass::WritesWhileLeading(fence) = &self.layer.pass else {
            self.layer.requests.answered(verb, None, None);
            return Box::pin(async { Err(FenceError::ReadOnly.into()) });
        };
        let (inner, fence, layer) = (self.inner.clone(), fence.clone(), self.layer.clone());
        Box::pin(async move {
            let permit = match fence.permit(limit).await {
                Ok(permit) => permit,
                Err(refusal) => {
                    layer.requests.answered(verb, None, None);
                    return Err(refusal.into());
                }
            };
            let write = async move {
                let answer = within(limit, async move { collected(inner.oneshot(request).await?).await }).await;
                drop(permit);
                answer
            };
            // The request goes on when nobody waits for its answer any more, and so does the permit.
            tokio::spawn(layer.counted(verb, write)).await?
        })
    }
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, BoxError>>) -> Result<T, BoxError> {
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(FenceError::TimedOut { limit }.into()))
}

/// The same answer, with its body read: a write is over when its answer is here, not when the answer begins.
async fn collected(answer: Response<Box<DynBody>>) -> Result<Response<Box<DynBody>>, BoxError> {
    let (head, body) = answer.into_parts();
    let bytes = body.collect().await?.to_bytes();
    let body: Box<DynBody> = Box::new(Full::new(bytes).map_err(|never| match never {}));
    Ok(Response::from_parts(head, body))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use kube::client::ClientBuilder;
    use tokio::sync::watch;
    use tributary_clock::{Now, SystemClock};

    use super::*;
    use crate::error::Cause;
    use crate::fence::{Epoch, LeaderState, Leadership};

    const LIMIT: Duration = Duration::from_secs(2);

    type Seen = Arc<Mutex<Vec<Method>>>;

    /// A client whose API server notes the methods that reach it and answers after `delay`.
    fn client(pass: Pass, delay: Duration) -> (kube::Client, Seen) {
        let seen = Seen::default();
        let server = {
            let seen = seen.clone();
            tower::service_fn(move |request: Request<Body>| {
                seen.lock().unwrap().push(request.method().clone());
                async move {
                    tokio::time::sleep(delay).await;
                    let body: Box<DynBody> =
                        Box::new(Full::new(bytes::Bytes::from("{}")).map_err(|never| match never {}));
                    Ok::<_, BoxError>(Response::new(body))
                }
            })
        };
        let (requests, clock) = (RequestMetrics::default(), SystemClock::shared());
        let layer = GuardLayer { pass, limit: LIMIT, requests, clock };
        let client = ClientBuilder::new(server, "default").with_layer(&layer).build();
        (client, seen)
    }

    async fn send(client: &kube::Client, method: Method) -> Result<(), Cause> {
        let request = Request::builder().method(method).uri("/api/v1/pods").body(Vec::new()).unwrap();
        client.request::<serde_json::Value>(request).await.map(drop).map_err(Cause::from)
    }

    fn leading_for(secs: u64) -> (watch::Sender<LeaderState>, Fence) {
        let clock = SystemClock::shared();
        let epoch = Epoch { transitions: 1, holder: "me".into() };
        let valid_until = Now::of(&*clock).plus(Duration::from_secs(secs));
        let (sender, receiver) = watch::channel(LeaderState::Leading(Leadership { epoch, before: None, valid_until }));
        (sender, Fence::new(receiver, clock))
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_leadership_reads_but_does_not_write() {
        let (_sender, fence) = leading_for(10);
        let (client, seen) = client(Pass::WritesWhileLeading(fence), Duration::ZERO);
        send(&client, Method::PATCH).await.unwrap();

        tokio::time::advance(Duration::from_secs(18)).await;
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            let error = send(&client, method).await.unwrap_err();
            assert!(matches!(error, Cause::Fenced(FenceError::NotLeading)), "{error}");
        }
        send(&client, Method::GET).await.unwrap();
        assert_eq!(*seen.lock().unwrap(), [Method::PATCH, Method::GET]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_leadership_may_not_outlast_waits_for_the_renewal_or_the_end() {
        let clock = SystemClock::shared();
        let (sender, fence) = leading_for(10);
        let (client, seen) = client(Pass::WritesWhileLeading(fence), Duration::ZERO);
        tokio::time::advance(Duration::from_secs(10) - LIMIT).await;
        let write = tokio::spawn({
            let client = client.clone();
            async move { send(&client, Method::PATCH).await }
        });
        tokio::time::sleep(LIMIT / 2).await;
        assert!(seen.lock().unwrap().is_empty(), "it was sent though leadership may end first");
        let epoch = Epoch { transitions: 1, holder: "me".into() };
        let valid_until = Now::of(&*clock).plus(LIMIT * 2);
        sender.send_replace(LeaderState::Leading(Leadership { epoch, before: None, valid_until }));
        write.await.unwrap().unwrap();
        assert_eq!(*seen.lock().unwrap(), [Method::PATCH]);

        // Nobody renews this time.
        tokio::time::advance(LIMIT + LIMIT / 2).await;
        let began = clock.mono();
        let error = send(&client, Method::PATCH).await.unwrap_err();
        assert!(matches!(error, Cause::Fenced(FenceError::NotLeading)), "{error}");
        let waited = clock.mono().saturating_since(began);
        assert!((LIMIT / 2..LIMIT).contains(&waited), "it waited {waited:?}");
        assert_eq!(seen.lock().unwrap().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_opens_the_fence_again() {
        let (sender, fence) = leading_for(0);
        let (client, _) = client(Pass::WritesWhileLeading(fence), Duration::ZERO);
        assert!(send(&client, Method::PATCH).await.is_err());
        let epoch = Epoch { transitions: 2, holder: "me".into() };
        let valid_until = Now::of(&*SystemClock::shared()).plus(Duration::from_secs(60));
        sender.send_replace(LeaderState::Leading(Leadership { epoch, before: None, valid_until }));
        send(&client, Method::PATCH).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_takes_too_long_is_given_up_and_the_fence_drains() {
        let (_sender, fence) = leading_for(60);
        let (client, _) = client(Pass::WritesWhileLeading(fence.clone()), LIMIT * 2);
        let write = tokio::spawn(async move { send(&client, Method::PATCH).await });
        tokio::time::sleep(LIMIT / 2).await;
        assert!(tokio::time::timeout(LIMIT / 4, fence.drained()).await.is_err(), "a write is in flight");
        let error = write.await.unwrap().unwrap_err();
        assert!(matches!(error, Cause::Fenced(FenceError::TimedOut { .. })), "{error}");
        fence.drained().await;
    }

    /// The danger: the Lease is given up while a write of the old leader is at the API server, and both write.
    #[tokio::test(start_paused = true)]
    async fn a_write_that_nobody_waits_for_any_more_is_in_flight_still() {
        let (_sender, fence) = leading_for(60);
        let (client, _) = client(Pass::WritesWhileLeading(fence.clone()), LIMIT / 2);
        let write = tokio::spawn(async move { send(&client, Method::POST).await });
        tokio::time::sleep(LIMIT / 4).await;
        write.abort();
        assert!(tokio::time::timeout(LIMIT / 8, fence.drained()).await.is_err(), "a write is in flight");
        tokio::time::timeout(LIMIT / 4, fence.drained()).await.expect("it has its answer");
    }

    #[tokio::test(start_paused = true)]
    async fn the_reader_reads_and_nothing_else() {
        let (client, seen) = client(Pass::Reads, Duration::ZERO);
        send(&client, Method::GET).await.unwrap();
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            let error = send(&client, method).await.unwrap_err();
            assert!(matches!(error, Cause::Fenced(FenceError::ReadOnly)), "{error}");
        }
        assert_eq!(*seen.lock().unwrap(), [Method::GET]);
    }
}
