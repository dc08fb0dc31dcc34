//! What is asked on a connection, and whether its client takes too long.

use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// What a client may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// From the beginning of a connection to the end of the head of its first question.
    pub first: Duration,
    /// From an answer to the end of the head of the next question.
    pub quiet: Duration,
    /// For a question and until it has taken the answer.
    pub whole: Duration,
}

/// Answers what is asked on a connection, until its client is slow or gone; from `stop` on only what is asked already.
/// `buffer`: most bytes of what is read of it at one time, and of the head of a request.
pub(crate) async fn serve<B, E, F>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    answer: impl Fn(Request<Incoming>, Asked) -> F,
    limits: Limits,
    buffer: Option<usize>,
    stop: &CancellationToken,
) where
    B: Body<Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
    E: Into<Box<dyn Error + Send + Sync>>,
    F: Future<Output = Result<Response<B>, E>>,
{
    let (asked, watched) = watch::channel(0);
    let asked = Arc::new(asked);
    let service = service_fn(|request| answer(request, Asked::tell(asked.clone())));
    let mut http = http1::Builder::new();
    // Answers are written from where they are: a copy would be memory that nobody counts, and nobody knows whether it is sent.
    http.timer(TokioTimer::new()).header_read_timeout(limits.quiet).writev(true);
    if let Some(buffer) = buffer {
        http.max_buf_size(buffer);
    }
    let mut served = pin!(http.serve_connection(TokioIo::new(stream), service));
    let (mut late, mut stopping) = (pin!(late(watched, limits.first, limits.whole)), false);
    loop {
        tokio::select! {
            _ = served.as_mut() => return,
            () = late.as_mut() => return,
            () = stop.cancelled(), if !stopping => {
                stopping = true;
                served.as_mut().graceful_shutdown();
            }
        }
    }
}

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
async fn late(mut asked: watch::Receiver<usize>, first: Duration, whole: Duration) {
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
