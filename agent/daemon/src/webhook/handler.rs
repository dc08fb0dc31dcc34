//! Answers reviews, one connection's at a time.
//!
//! Whoever can reach the port may post anything, and an agent that runs out of memory serves nobody. So what all that is asked
//! takes is bounded, whoever asks, whatever it is and however slowly it comes and goes:
//!
//! | what takes memory | most |
//! |---|---|
//! | connections, of which there are [`CONNECTIONS`](super::server::CONNECTIONS): 64 KiB each for TLS and HTTP | 10 MiB |
//! | on each of them a review of [`SMALL`] at most, and its answer, which may be larger: 256 KiB | 40 MiB |
//! | all larger reviews, which wait for room, and their answers, until they are sent: [`ROOM`] | 48 MiB |
//! | what is converted at one time: one object of a small review, and one of another ([`webhook::most_of_object`]) | 42 MiB |
//!
//! These are 140 MiB, and an agent may have 512. `tributary-bench --only webhook` shows what it has then.
//!
//! Somebody who posts large reviews all the time can have others of that size wait for too long. Small ones are not in the same
//! line: almost all that API servers ask is of one object.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Body;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};
use tributary::webhook;

use super::metrics::{Answered, WebhookMetrics};
use crate::asked::Asked;

/// Largest review: a list has 500 objects in one, as many as a page of `kubectl`, of 32 KiB each. The
/// largest object that etcd holds has 1.5 MiB.
const LARGEST: usize = 16 << 20;
/// Largest review that needs no room.
const SMALL: usize = 64 << 10;
/// Room for larger ones: for the largest of them, or for several.
const ROOM: usize = takes(LARGEST);
/// What a permit for room stands for: semaphores count no further than 32 bits.
const UNIT: usize = 1024;
/// How long a review may wait for room. API servers wait 30 s for the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// What a body may take, besides the time for its bytes.
const START: Duration = Duration::from_secs(2);
/// Bytes of a body within a millisecond, at least: what has come counts as soon as it has, so that nobody keeps room with a
/// body that does not come.
const SPEED: usize = 2 << 10;

/// What a review and its answer take.
const fn takes(size: usize) -> usize {
    size * (1 + webhook::MOST_TIMES) + webhook::MOST_BESIDE
}

/// Where reviews are answered.
pub(super) struct Handler {
    room: Arc<Semaphore>,
    /// Turns of small reviews, and of others.
    turns: [Arc<Semaphore>; 2],
    metrics: WebhookMetrics,
}

/// An answer with what it keeps from others while it is in memory.
struct Held {
    json: Vec<u8>,
    _room: Option<OwnedSemaphorePermit>,
    _asked: Asked,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.json
    }
}

type Refused = (StatusCode, String);

impl Handler {
    pub(super) fn new(metrics: WebhookMetrics) -> Self {
        let turn = || Arc::new(Semaphore::new(1));
        Self { room: Arc::new(Semaphore::new(ROOM.div_ceil(UNIT))), turns: [turn(), turn()], metrics }
    }

    /// Answers a request.
    pub(super) async fn answer<B: Body<Data = Bytes> + Send>(
        &self,
        request: Request<B>,
        asked: Asked,
    ) -> Response<Full<Bytes>> {
        let refused = |status: StatusCode, why: String| {
            let mut response = Response::new(Full::from(why));
            *response.status_mut() = status;
            response
        };
        if request.uri().path() != webhook::PATH {
            return refused(StatusCode::NOT_FOUND, String::new());
        }
        if request.method() != Method::POST {
            return refused(StatusCode::METHOD_NOT_ALLOWED, String::new());
        }
        let (how, response) = match self.converted(request.into_body(), asked).await {
            Ok((how, json)) => {
                let mut response = Response::new(Full::new(json));
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                (how, response)
            }
            Err((status @ StatusCode::INTERNAL_SERVER_ERROR, why)) => (Answered::Failed, refused(status, why)),
            Err((status, why)) => (Answered::Refused, refused(status, why)),
        };
        self.metrics.answered(how);
        response
    }

    async fn converted<B: Body<Data = Bytes> + Send>(
        &self,
        body: B,
        asked: Asked,
    ) -> Result<(Answered, Bytes), Refused> {
        let too_large = || (StatusCode::PAYLOAD_TOO_LARGE, format!("more than {LARGEST} bytes\n"));
        let size = body.size_hint().exact().ok_or((StatusCode::LENGTH_REQUIRED, String::new()))?;
        let size = usize::try_from(size).ok().filter(|size| *size <= LARGEST).ok_or_else(too_large)?;
        let [small, others] = &self.turns;
        let (mut room, mut turns) = (None, small);
        let busy = || (StatusCode::SERVICE_UNAVAILABLE, "too much is asked at one time\n".to_owned());
        if size > SMALL {
            let permits = u32::try_from(takes(size).div_ceil(UNIT)).unwrap_or(u32::MAX);
            let waited = timeout(PATIENCE, self.room.clone().acquire_many_owned(permits)).await;
            room = Some(waited.map_err(|_| busy())?.map_err(|_| busy())?);
            turns = others;
        }
        let body = read(body, size).await?;
        let turn = turns.clone().acquire_owned().await.map_err(|_| busy())?;
        // Goes on if whoever asked goes away, and keeps until its end what it takes.
        let converted = tokio::task::spawn_blocking(move || {
            let answer = webhook::review(&body);
            drop((body, turn));
            let answer = answer.map_err(|error| (StatusCode::BAD_REQUEST, format!("{error}\n")))?;
            let how = match answer.failure {
                None => Answered::Converted,
                Some(message) => {
                    tracing::warn!(message, "a conversion failed");
                    Answered::Failed
                }
            };
            Ok((how, Bytes::from_owner(Held { json: answer.json, _room: room, _asked: asked })))
        });
        converted.await.unwrap_or_else(|_| Err((StatusCode::INTERNAL_SERVER_ERROR, String::new())))
    }
}

/// Reads a body of a size that is known. What nothing was written to is no memory yet, so a body takes what has come of it.
async fn read<B: Body<Data = Bytes> + Send>(body: B, size: usize) -> Result<Vec<u8>, Refused> {
    let (mut body, mut bytes, began) = (pin!(body), Vec::with_capacity(size), Instant::now());
    loop {
        let for_bytes = Duration::from_millis(u64::try_from(bytes.len() / SPEED).unwrap_or(u64::MAX));
        let frame = timeout_at(began + START + for_bytes, body.frame()).await;
        match frame.map_err(|_| (StatusCode::REQUEST_TIMEOUT, String::new()))? {
            Some(Ok(frame)) => {
                let data = frame.into_data().unwrap_or_default();
                bytes.extend_from_slice(data.get(..data.len().min(size - bytes.len())).unwrap_or_default());
            }
            Some(Err(_)) => return Err((StatusCode::BAD_REQUEST, "the body broke off\n".to_owned())),
            None => return Ok(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use futures::future::join_all;
    use hyper::body::{Frame, SizeHint};
    use serde_json::{Value, json};
    use tokio::sync::watch;

    use super::*;

    /// A body that says how large it is, and stops after some parts of it.
    struct Stalled {
        size: usize,
        parts: VecDeque<Bytes>,
    }

    impl Body for Stalled {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.parts.pop_front().map_or(Poll::Pending, |part| Poll::Ready(Some(Ok(Frame::data(part)))))
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(self.size as u64)
        }
    }

    fn desk() -> Handler {
        Handler::new(WebhookMetrics::default())
    }

    fn request<B>(body: B) -> Request<B> {
        Request::post(webhook::PATH).body(body).unwrap()
    }

    fn asked() -> Asked {
        Asked::tell(Arc::new(watch::channel(0).0))
    }

    /// Of so many objects.
    fn review(version: &str, count: usize) -> String {
        let object: Value = json!({"apiVersion": version, "kind": "MiniCluster", "metadata": {"name": "lake"},
            "spec": {"containers": [{"image": "x"}]}});
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request":
            {"uid": "7", "desiredAPIVersion": "flux-framework.org/v1alpha2", "objects": vec![object; count]}})
        .to_string()
    }

    fn good() -> Full<Bytes> {
        review("flux-framework.org/v1alpha1", 1).into()
    }

    async fn status(desk: &Handler, body: Full<Bytes>) -> StatusCode {
        desk.answer(request(body), asked()).await.status()
    }

    #[tokio::test]
    async fn each_answer_is_of_its_kind() {
        let told = async |body: String| desk().converted(Full::<Bytes>::from(body), asked()).await;
        let known = review("flux-framework.org/v1alpha1", 2);
        assert_eq!(told(known).await.unwrap().0, Answered::Converted);
        let unknown = review("flux-framework.org/v1beta1", 1);
        assert_eq!(told(unknown).await.unwrap().0, Answered::Failed);
        for other in ["", "{}", "no JSON"] {
            assert_eq!(told(other.to_owned()).await.unwrap_err().0, StatusCode::BAD_REQUEST, "{other}");
        }
        let elsewhere = Request::post("/").body(good()).unwrap();
        assert_eq!(desk().answer(elsewhere, asked()).await.status(), StatusCode::NOT_FOUND);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_too_large_or_of_no_known_size_is_not_read() {
        let of = |size| Stalled { size, parts: VecDeque::new() };
        let answer = desk().answer(request(of(LARGEST + 1)), asked()).await;
        assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE);
        let endless = http_body_util::StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, Infallible>>());
        assert_eq!(desk().answer(request(endless), asked()).await.status(), StatusCode::LENGTH_REQUIRED);
        assert_eq!(desk().answer(request(of(7)), asked()).await.status(), StatusCode::REQUEST_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_is_slow_keeps_nobody_waiting_who_is_not() {
        let (desk, began) = (desk(), Instant::now());
        // As many as can be connected: those that say something small, those that say something large, of which some begin.
        let slow = (0..super::super::server::CONNECTIONS).map(|count| {
            let parts = if count % 3 == 0 { vec![Bytes::from(vec![b' '; 1 << 20])] } else { Vec::new() };
            let size = if count % 2 == 0 { LARGEST } else { SMALL };
            desk.answer(request(Stalled { size, parts: parts.into() }), asked())
        });
        let beside = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert_eq!(status(&desk, good()).await, StatusCode::OK);
            began.elapsed()
        };
        let (slow, waited) = tokio::join!(join_all(slow), beside);
        assert!(waited < Duration::from_secs(1), "{waited:?}");
        assert!(slow.iter().all(|answer| answer.status() != StatusCode::OK));
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        assert_eq!(desk.room.available_permits(), ROOM.div_ceil(UNIT));
        let large = review("flux-framework.org/v1alpha1", 5_000);
        assert!(large.len() > SMALL);
        assert_eq!(status(&desk, large.into()).await, StatusCode::OK);
    }

    #[tokio::test(start_paused = true)]
    async fn all_that_is_large_has_its_room_until_its_answer_is_sent() {
        let desk = desk();
        let hostile = || Full::<Bytes>::from(format!("[{}0]", "0,".repeat((LARGEST - 3) / 2)));
        assert_eq!(status(&desk, hostile()).await, StatusCode::BAD_REQUEST);
        assert_eq!(desk.room.available_permits(), ROOM.div_ceil(UNIT), "nothing of it is left");
        let mut padded = review("flux-framework.org/v1alpha1", 1);
        padded.push_str(&" ".repeat(LARGEST - padded.len()));
        let unsent = desk.answer(request(Full::<Bytes>::from(padded)), asked()).await;
        assert_eq!((unsent.status(), desk.room.available_permits()), (StatusCode::OK, 0));
        assert_eq!(status(&desk, hostile()).await, StatusCode::SERVICE_UNAVAILABLE, "in vain");
        assert_eq!(status(&desk, good()).await, StatusCode::OK, "it needs none");
        drop(unsent);
        assert_eq!(status(&desk, hostile()).await, StatusCode::BAD_REQUEST);
    }
}
