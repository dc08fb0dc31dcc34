//! `exec` in the pods of lead brokers: what their queues say to an agent that looks at them.

use std::sync::{Arc, Mutex};

use futures::SinkExt as _;
use http::header::SEC_WEBSOCKET_PROTOCOL;
use http::{HeaderValue, Request, Response};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use kube::client::{Body, DynBody};
use serde_json::{Value, json};
use tokio::io::DuplexStream;
use tokio_tungstenite::accept_hdr_async;
use tokio_tungstenite::tungstenite::Message;
use tower::BoxError;

/// What the lead brokers of a cluster say of their queues; nothing, if they cannot be asked. Cloning shares it.
#[derive(Clone)]
pub struct Queue(Arc<Mutex<Option<String>>>);

impl Default for Queue {
    fn default() -> Self {
        let queue = Self(Arc::default());
        queue.says("", 0);
        queue
    }
}

impl Queue {
    /// On which ranks jobs run, and how many more wait that may run on brokers which are not there yet.
    pub fn says(&self, busy: &str, pending: u32) {
        let slot = json!({"type": "slot", "count": 1, "with": [{"type": "core", "count": 1}]});
        let job = json!({"count": pending, "burstable": true, "resources": [slot], "constraints": Value::Null});
        let answer = json!({"up": "0-1", "busy": busy, "used": [], "pending": [job]});
        *self.0.lock().unwrap() = Some(answer.to_string());
    }

    /// Nobody can run a command in a pod any more: the API server has the last word.
    pub fn close(&self) {
        *self.0.lock().unwrap() = None;
    }

    /// What is said to a request, if it is one for `exec` that is answered.
    pub fn answer_to(&self, request: &Request<Body>) -> Option<String> {
        request.uri().path().ends_with("/exec").then(|| self.0.lock().unwrap().clone()).flatten()
    }
}

/// Answers a request for `exec`, on a connection of its own as hyper knows them.
pub async fn answer(request: Request<Body>, stdout: String) -> Result<Response<Box<DynBody>>, BoxError> {
    let (near, far) = tokio::io::duplex(1 << 16);
    tokio::spawn(say(far, stdout));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near)).await?;
    tokio::spawn(connection.with_upgrades());
    let answer = sender.send_request(request).await?;
    Ok(answer.map(|body| Box::new(body.map_err(BoxError::from)) as Box<DynBody>))
}

/// Says something on stdout, and that all went well. Each message begins with the number of its channel.
async fn say(stream: DuplexStream, stdout: String) -> Option<()> {
    #[allow(clippy::result_large_err, reason = "tungstenite asks for this error")]
    let protocol = |_: &_, mut response: Response<()>| {
        response.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("v5.channel.k8s.io"));
        Ok(response)
    };
    let mut socket = accept_hdr_async(stream, protocol).await.ok()?;
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}).to_string();
    for (channel, text) in [(1, stdout), (3, status)] {
        let message = [&[channel], text.as_bytes()].concat();
        socket.send(Message::Binary(message.into())).await.ok()?;
    }
    socket.close(None).await.ok()
}
